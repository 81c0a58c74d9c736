package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/chzyer/readline"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/bulkhead-kv/bulkhead/internal/chatclient"
	"github.com/bulkhead-kv/bulkhead/internal/terminal"
)

const (
	historyLines = 1000
	lineBytesMax = 16 << 20
	chatHint     = "Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands"
)

func newChat() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "chat MODEL",
		Short: "talk with a model",
		Long: "Talk with a model. Ctrl-C stops an answer, Ctrl-D leaves, /help lists the\n" +
			"commands; \"\"\" begins and ends a message of several lines. What you type is kept\n" +
			"in chat_history in the data folder, for this user alone; --no-history keeps none.\n\n" + serverNote,
		Example:           "  bulkhead chat smollm2:135m\n  bulkhead chat smollm2:135m --system \"Answer in one sentence.\" --temperature 0",
		Args:              args(cobra.ExactArgs(1)),
		ValidArgsFunction: modelNames,
	}
	flags := addTalkFlags(cmd)
	cmd.Flags().Bool("no-history", false, "don't keep what is typed in a file")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := flags.request(cmd)
		if err != nil {
			return err
		}
		starting, started := interruptible(cmd)
		server, err := flags.connect(starting, cmd, args[0])
		started()
		if err != nil {
			return err
		}
		defer server.Close()
		request.Model = server.model
		return errors.Join(chat(cmd, server.Client, request), server.end())
	}
	return cmd
}

// chat holds the conversation. Ctrl-C belongs to the answers, so it is not in
// the context; SIGTERM is.
func chat(cmd *cobra.Command, client *chatclient.Client, request chatclient.Request) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	lines, closeLines, err := openLines(ctx, cmd)
	if err != nil {
		return err
	}
	defer closeLines()
	if term.IsTerminal(int(os.Stdin.Fd())) {
		fmt.Fprintln(cmd.ErrOrStderr(), terminal.New(os.Stderr, os.Getenv).Dim(chatHint))
	}
	session := &chatclient.Session{
		Client: client, Request: request, Lines: lines, Out: cmd.OutOrStdout(), Dim: terminal.New(os.Stdout, os.Getenv).Dim,
		Stoppable: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return signal.NotifyContext(ctx, os.Interrupt)
		},
	}
	return session.Run(ctx)
}

// openLines gives line editing and history to a person, and plain lines to a program.
func openLines(ctx context.Context, cmd *cobra.Command) (chatclient.Lines, func(), error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		lines := bufio.NewScanner(cmd.InOrStdin())
		lines.Buffer(nil, lineBytesMax)
		return plainLines{lines}, func() {}, nil
	}
	history, err := historyFile(cmd)
	if err != nil {
		return nil, nil, err
	}
	editor, err := readline.NewEx(&readline.Config{HistoryFile: history, HistoryLimit: historyLines})
	if err != nil {
		return nil, nil, err
	}
	// Between lines and answers an interrupt must not end the program.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	// The editor's own Close waits for its reader, which may wait for a key.
	end := sync.OnceFunc(func() {
		editor.Operation.Close()
		_ = editor.Terminal.ExitRawMode() // there is nothing to do if it can't
	})
	stopEnding := context.AfterFunc(ctx, end)
	return editedLines{editor}, func() {
		stopEnding()
		signal.Stop(interrupts)
		end()
	}, nil
}

// historyFile is a private file: it holds what was typed. It is empty for none.
func historyFile(cmd *cobra.Command) (string, error) {
	if none, err := cmd.Flags().GetBool("no-history"); none || err != nil {
		return "", err
	}
	home, err := homeOf(cmd)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("open history: %w", err)
	}
	path := filepath.Join(home, "chat_history")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("open history: %w", err)
	}
	return path, file.Close()
}

type editedLines struct{ editor *readline.Instance }

func (l editedLines) Line(prompt string) (string, error) {
	l.editor.SetPrompt(prompt)
	line, err := l.editor.Readline()
	if errors.Is(err, readline.ErrInterrupt) {
		return "", chatclient.ErrLineDropped
	}
	return line, err
}

type plainLines struct{ lines *bufio.Scanner }

func (l plainLines) Line(string) (string, error) {
	if l.lines.Scan() {
		return l.lines.Text(), nil
	}
	if err := l.lines.Err(); err != nil {
		return "", err
	}
	return "", io.EOF
}
