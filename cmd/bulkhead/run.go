package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/chatclient"
	"github.com/bulkhead-kv/bulkhead/internal/terminal"
)

const promptBytesMax = 16 << 20

func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run MODEL PROMPT",
		Short: "ask a model once and print its answer",
		Long: "Ask a model once; its answer appears as it is made. With - as the prompt it is\n" +
			"read from standard input.\n\n" + serverNote,
		Example: `  bulkhead run smollm2:135m "Name three rivers of Europe"
  bulkhead run smollm2:135m - < question.txt
  BULKHEAD_API_KEY=bh_... bulkhead run smollm2:135m "Hello" --url http://10.0.0.5:8080`,
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: modelNames,
	}
	flags := addTalkFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := flags.request(cmd)
		if err != nil {
			return err
		}
		prompt, err := readPrompt(cmd.InOrStdin(), args[1])
		if err != nil {
			return err
		}
		request.Messages = append(request.Messages, chatclient.Message{Role: "user", Content: prompt})
		ctx, stop := interruptible(cmd)
		defer stop()
		server, err := flags.connect(ctx, cmd, args[0])
		if err != nil {
			return err
		}
		defer server.Close()
		request.Model = server.model
		return errors.Join(runOnce(ctx, cmd, server.Client, request), server.end())
	}
	return cmd
}

func readPrompt(in io.Reader, prompt string) (string, error) {
	if prompt != "-" {
		return prompt, nil
	}
	text, err := io.ReadAll(io.LimitReader(in, promptBytesMax+1))
	if err != nil {
		return "", fmt.Errorf("read the prompt: %w", err)
	}
	if len(text) > promptBytesMax {
		return "", fmt.Errorf("read the prompt: over the limit of %d bytes", promptBytesMax)
	}
	return string(text), nil
}

func runOnce(ctx context.Context, cmd *cobra.Command, client *chatclient.Client, request chatclient.Request) error {
	out := cmd.OutOrStdout()
	answer, err := client.Chat(ctx, request, func(piece string) error {
		_, err := io.WriteString(out, piece)
		return err
	})
	if answer.Text != "" && !strings.HasSuffix(answer.Text, "\n") {
		fmt.Fprintln(out)
	}
	if look := terminal.New(os.Stderr, os.Getenv); err == nil && answer.Finish == "length" && look.IsTerminal() {
		fmt.Fprintln(cmd.ErrOrStderr(), look.Dim(fmt.Sprintf("(cut off at %d tokens)", answer.OutputTokens)))
	}
	return err
}
