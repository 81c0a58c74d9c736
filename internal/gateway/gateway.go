// Package gateway serves the API and hands requests to workers.
//
// The life of a request: authenticate; drop what would steer transfer, cache or
// identity; render, tokenize and count; admit, before any header and any
// identity; queue; choose a pair; run on both workers; withhold all output until
// prefill's verdict, decode's verdict and the gateway's own count agree; deliver.
//
//	call.go      one HTTP request: admission, its choices, their delivery
//	choice.go    one choice: attempts, one after another
//	attempt.go   one attempt: two streams of events
//	verdict.go   what is demanded of those events (pure)
//	assemble.go  text from tokens: UTF-8, stop strings (pure)
//	dispatch.go  the queue and who runs where
//	body.go, prompt.go  what a request may cost before it is admitted
//	connections.go  which connection is closed for a new one
//	bounded.go   what an answer waits for
//	chat.go, completion.go  the two forms of answers
//
// What a client can observe of others: nothing but its own tenant's queue and
// quota, and the time it waits.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
	"github.com/bulkhead-kv/bulkhead/internal/fault"
	"github.com/bulkhead-kv/bulkhead/internal/metrics"
	"github.com/bulkhead-kv/bulkhead/internal/openai"
	"github.com/bulkhead-kv/bulkhead/internal/tenant"
	"github.com/bulkhead-kv/bulkhead/kv"
)

// Cluster runs jobs on workers and knows their states.
type Cluster interface {
	// Status is the latest of every configured worker.
	Status() []cluster.Member
	// Changed is closed at the next change. It is taken before Status is read.
	Changed() <-chan struct{}
	// Run starts a job on one node of its pair. Ending ctx cancels the job there.
	Run(ctx context.Context, job cluster.Job, node string) (Stream, error)
}

// Stream is the events of one job on one worker. Recv returns io.EOF after the
// terminal event.
type Stream interface {
	Recv() (cluster.Event, error)
	Close()
}

// Text is the model's side of text: template and tokenizer. It is safe for
// concurrent use and keeps nothing of one call for another.
type Text interface {
	// Chat renders and tokenizes a conversation, ready for the assistant's turn.
	// An error of kind fault.Invalid is the client's. It gives up with a *TooLong when
	// there are more than tokensMax tokens, and with an error when ctx ends.
	Chat(ctx context.Context, messages []openai.Message, tokensMax int) ([]int32, error)
	// Prompt tokenizes a text for continuation, with the model's BOS if it takes one.
	// It gives up as Chat does.
	Prompt(ctx context.Context, text string, tokensMax int) ([]int32, error)
	// Piece is what a token adds to a text; nil for control tokens. It is not changed.
	Piece(token int32) []byte
	// Vocabulary is the number of ids, which are 0 to Vocabulary()-1.
	Vocabulary() int
	// Stops lists the ids that end an answer.
	Stops() []int32
}

// Tenants says whose a key is.
type Tenants interface {
	Authenticate(key string, now time.Time) (*tenant.Tenant, error)
	Count() int
	// Err is why a change of the tenants is not in effect.
	Err() error
}

// Ledger keeps the record of requests. An error of Err stops admission.
type Ledger interface {
	Record(Entry)
	Err() error
}

// EntryKind says what happened to a request.
type EntryKind string

// The kinds of entries.
const (
	EntryAccepted  EntryKind = "accepted"  // admitted; Output is what was granted
	EntryCommitted EntryKind = "committed" // both workers and the gateway agree
	EntryFinished  EntryKind = "finished"  // Output is what was generated
	EntryFailed    EntryKind = "failed"
)

// Entry is one event in the life of a choice. It carries counts and ids only.
type Entry struct {
	Kind    EntryKind
	Boot    uint64 // the gateway's
	Request uint64
	Attempt uint32 // of the pair that committed, finished or failed; 0 before the first
	Tenant  kv.TenantTag
	X       kv.TransferID // committed
	Prompt  int           // tokens
	Output  int           // tokens
	Fault   fault.Kind    // failed
	Answer  string        // accepted: the random part of the answer's id, one for all choices of a call
}

// Parts is what a Gateway is made of. Now may be nil: the real clock.
type Parts struct {
	Cluster Cluster
	// Fingerprint is that of the model whose template and tokenizer Text is. Workers
	// with another one take no part: their tokens would mean other text.
	Fingerprint kv.Fingerprint
	Text        Text
	Tenants     Tenants
	Ledger      Ledger
	Metrics     *metrics.Set
	Log         *slog.Logger
	Now         func() time.Time
}

// Gateway answers the API. Its methods are safe for concurrent use.
type Gateway struct {
	config   Config
	parts    Parts
	boot     uint64 // random nonce, never zero
	started  time.Time
	requests atomic.Uint64 // the last request's number
	draining atomic.Bool
	// unrecorded is that the log has said that the ledger can't be written.
	unrecorded atomic.Bool
	working    work
	inFlight   atomic.Int64
	quotas     *quotas
	entry      *entry  // requests that are being prepared
	heavies    *entry  // of those, the ones with a heavy body
	bodies     *budget // bodies that are being prepared
	answers    *budget // answers that are gathered to be delivered whole
	dispatch   *dispatcher
	health     *health
	probeTag   kv.TenantTag
	// refreshing lets one scrape at a time set the gauges anew.
	refreshing sync.Mutex
	mirrors    map[string]mirrored // by series; protected by refreshing

	// stopped ends every call that still runs when the drain's deadline is over.
	stopped context.Context
	stop    context.CancelCauseFunc
}

// New checks the configuration and makes a gateway. Run must be running for
// requests to be answered.
func New(config Config, parts Parts) (*Gateway, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if parts.Fingerprint == (kv.Fingerprint{}) || parts.Cluster == nil || parts.Text == nil || parts.Tenants == nil || parts.Ledger == nil || parts.Metrics == nil || parts.Log == nil {
		return nil, errors.New("gateway: a part is missing")
	}
	if parts.Now == nil {
		parts.Now = time.Now
	}
	g := &Gateway{config: config, parts: parts, boot: nonce(), started: parts.Now(), probeTag: kv.TenantTag(nonce())}
	g.quotas = newQuotas(parts.Now)
	g.entry = newEntry(config.TenantBodiesMax, config.QueueTimeout)
	g.heavies = newEntry(1, config.QueueTimeout)
	g.bodies = newBudget("request bodies", config.BodiesBytesMax, config.TenantBodiesBytesMax)
	g.answers = newBudget("answers that don't stream", config.AnswersBytesMax, config.TenantAnswersBytesMax)
	g.dispatch = newDispatcher(config, parts)
	g.health = newHealth(parts.Now)
	g.working.idle = make(chan struct{})
	g.mirrors = map[string]mirrored{}
	g.stopped, g.stop = context.WithCancelCause(context.Background())
	return g, nil
}

// nonce is random and not zero.
func nonce() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // crypto/rand never fails
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// request is a number that no other request of this boot has.
func (g *Gateway) request() uint64 { return g.requests.Add(1) }

// publicName is what an answer is called outside. It is random, so that no tenant can
// tell from its own answers' names how many others there were.
func publicName() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}

// sweepEvery is the time between two looks at the queue's and the quotas' times.
const sweepEvery = 100 * time.Millisecond

// Run follows the workers' states, gives turns to waiting choices and probes
// idle pairs. It returns nil when ctx ends and all that it started has.
func (g *Gateway) Run(ctx context.Context) error {
	probed := make(chan struct{})
	go func() {
		defer close(probed)
		g.probe(ctx)
	}()
	defer func() { <-probed }()
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	var served served
	strangers := strangers{model: g.parts.Fingerprint, named: map[string]kv.Epoch{}}
	for {
		changed := g.parts.Cluster.Changed()
		strangers.look(g.parts.Cluster.Status(), g.parts.Log)
		g.dispatch.sweep()
		if limit, err := g.dispatch.limit(); err == nil && len(g.dispatch.pairs()) > 0 {
			served.look(limit, g.parts.Log)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
			if n := g.quotas.expire(); n > 0 {
				g.parts.Metrics.Add(metrics.QuotaExpired, float64(n))
			}
		}
	}
}

// Handler serves the API.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/chat/completions", g.route("chat", http.MethodPost, g.worked(g.serveChat)))
	mux.Handle("/v1/completions", g.route("completions", http.MethodPost, g.worked(g.serveCompletion)))
	mux.Handle("/v1/models", g.route("models", http.MethodGet, g.serveModels))
	mux.Handle("/v1/models/", g.route("models", http.MethodGet, g.serveModel))
	mux.Handle("/tokenize", g.route("tokenize", http.MethodPost, g.worked(g.serveTokenize)))
	mux.Handle("/healthz", g.route("healthz", http.MethodGet, g.serveHealthz))
	if g.config.OpenMetrics {
		mux.Handle("/readyz", g.route("readyz", http.MethodGet, g.serveReadyzDetails))
		mux.Handle("/metrics", g.route("metrics", http.MethodGet, g.serveMetrics))
	} else {
		mux.Handle("/readyz", g.route("readyz", http.MethodGet, g.serveReadyz))
	}
	mux.Handle("/", g.route("other", "", serveNotFound))
	return g.bounded(mux)
}

// AdminHandler serves the routes that are the operator's: /metrics, /readyz with its
// reasons, /healthz.
func (g *Gateway) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", g.route("healthz", http.MethodGet, g.serveHealthz))
	mux.Handle("/readyz", g.route("readyz", http.MethodGet, g.serveReadyzDetails))
	mux.Handle("/metrics", g.route("metrics", http.MethodGet, g.serveMetrics))
	mux.Handle("/", g.route("other", "", serveNotFound))
	return g.bounded(mux)
}

func serveNotFound(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusNotFound, (&openai.Error{Message: "no such route", Type: openai.TypeInvalidRequest, Code: "not_found"}).Body())
}
