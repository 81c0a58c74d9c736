package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/bulkhead-kv/bulkhead/internal/chatclient"
	"github.com/bulkhead-kv/bulkhead/internal/store"
	"github.com/bulkhead-kv/bulkhead/internal/terminal"
	"github.com/bulkhead-kv/bulkhead/internal/tracer"
)

const (
	// usualAddress is where a server is looked for when nobody names one.
	usualAddress = "http://127.0.0.1:8080"
	// lookTimeout bounds the look for a server that nobody named.
	lookTimeout = 2 * time.Second
	// probeTimeout bounds the first answer of one that somebody named.
	probeTimeout = 10 * time.Second
	serverNote   = `A server at --url or BULKHEAD_URL, ours or another with the OpenAI API, is used with
the key in BULKHEAD_API_KEY, else one at ` + usualAddress + ` that has the model.
Where none is up, one is started for the time of the command.`
)

// talkFlags are what run and chat have in common.
type talkFlags struct {
	url, key, system string
	private          bool
	maxTokens        int
	temperature      float64
	seed             int64
}

func addTalkFlags(cmd *cobra.Command) *talkFlags {
	f := &talkFlags{}
	cmd.Flags().StringVar(&f.url, "url", "", "server's address (default: "+usualAddress+" if it has the model)")
	cmd.Flags().StringVar(&f.key, "api-key", "", "tenant's key; better in BULKHEAD_API_KEY, where other users can't see it")
	cmd.Flags().BoolVar(&f.private, "private", false, "start a server for this command, whatever else is up")
	cmd.Flags().StringVar(&f.system, "system", "", "system message")
	cmd.Flags().IntVar(&f.maxTokens, "max-tokens", 0, "most tokens of an answer, 0 for the server's own limit")
	cmd.Flags().Float64Var(&f.temperature, "temperature", 0, "0 for the most likely text, more for variety (default: the server's)")
	cmd.Flags().Int64Var(&f.seed, "seed", 0, "same seed, same text (default: none)")
	return f
}

// request is the settings without model and question.
func (f *talkFlags) request(cmd *cobra.Command) (chatclient.Request, error) {
	r := chatclient.Request{MaxTokens: f.maxTokens}
	if cmd.Flags().Changed("temperature") {
		r.Temperature = &f.temperature
	}
	if cmd.Flags().Changed("seed") {
		r.Seed = &f.seed
	}
	if f.system != "" {
		r.Messages = append(r.Messages, chatclient.Message{Role: "system", Content: f.system})
	}
	if err := atLeast(0, number{"max-tokens", f.maxTokens}); err != nil {
		return r, err
	}
	if f.private && f.url != "" {
		return r, usageError{errors.New("--private and --url exclude each other")}
	}
	return r, nil
}

// connection is a server and the name that it has for the model.
type connection struct {
	*chatclient.Client
	model string
	end   func() error // ends what was started for it
}

// connect finds a server with the model, or starts one.
func (f *talkFlags) connect(ctx context.Context, cmd *cobra.Command, model string) (connection, error) {
	found := connection{model: model, end: func() error { return nil }}
	var err error
	if f.url != "" {
		if found.Client, err = chatclient.New(f.url, f.key); err != nil {
			return connection{}, usageError{err}
		}
		if err := probe(ctx, found.Client, f.key, probeTimeout); err != nil {
			found.Close()
			return connection{}, err
		}
		return found, nil
	}
	if !f.private {
		found.model = store.FullName(model)
		found.Client, err = lookForServer(ctx, f.key, found.model)
		if found.Client != nil || err != nil {
			return found, err
		}
	}
	return startServer(ctx, cmd, model)
}

// probe looks whether a server that somebody named is one.
func probe(ctx context.Context, c *chatclient.Client, key string, within time.Duration) error {
	probing, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := c.Probe(probing)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case probing.Err() != nil && err != nil:
		return fmt.Errorf("the server at %s has not answered within %s", c.Address(), within)
	case keyRefused(err):
		return wantsKey(c.Address(), key)
	}
	return err
}

// lookForServer gives the server at the usual address if it has the model, and
// nothing if none is there or it is something else.
func lookForServer(ctx context.Context, key, model string) (*chatclient.Client, error) {
	c, err := chatclient.New(usualAddress, key)
	if err != nil {
		return nil, err
	}
	lookCtx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	models, err := c.Models(lookCtx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case keyRefused(err):
		return nil, wantsKey(usualAddress, key)
	case err != nil || !slices.Contains(models, model):
		c.Close()
		return nil, nil
	}
	return c, nil
}

// keyRefused tells a server that wants another key from something else that keeps us out.
func keyRefused(err error) bool {
	var refused *chatclient.APIError
	return errors.As(err, &refused) && refused.WantsKey() && !refused.Foreign
}

// wantsKey says what to do about a server that refuses us.
func wantsKey(address, key string) error {
	if key == "" {
		return configError{fmt.Errorf("the server at %s wants a key: set BULKHEAD_API_KEY to one of its tenants', or start one of your own with --private", address)}
	}
	return configError{fmt.Errorf("the server at %s does not know the key in BULKHEAD_API_KEY or --api-key: set another, or start one of your own with --private", address)}
}

func startServer(ctx context.Context, cmd *cobra.Command, model string) (connection, error) {
	home, err := homeOf(cmd)
	if err != nil {
		return connection{}, err
	}
	if err := mustHave(cmd, model); err != nil {
		return connection{}, err
	}
	program, err := os.Executable()
	if err != nil {
		return connection{}, err
	}
	if look := terminal.New(os.Stderr, os.Getenv); look.IsTerminal() {
		fmt.Fprintln(cmd.ErrOrStderr(), look.Dim("starting a server for "+model))
	}
	// What the environment or the settings file says of a public server is not for this one.
	p, err := chatclient.StartPrivate(ctx, program, "serve", model, "--home", home,
		"--listen=127.0.0.1:0", "--tenants=", "--tls-cert=", "--tls-key=")
	if err != nil {
		return connection{}, err
	}
	c, err := p.Client()
	if err != nil {
		return connection{}, errors.Join(err, p.Stop())
	}
	return connection{c, p.Model, p.Stop}, nil
}

// mustHave reports a model that is not here before a server is started in vain.
func mustHave(cmd *cobra.Command, model string) error {
	if model == tracer.Name {
		return nil
	}
	s, err := openStore(cmd)
	if err != nil {
		return err
	}
	_, _, err = s.Resolve(model)
	return err
}
