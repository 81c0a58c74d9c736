// Package metrics is the table of everything we measure.
//
// table.go has one row a metric; docs/metrics.md is generated from it. A process
// makes one Set and writes to it by name; the names are constants, and a label
// that is not in a metric's row is a mistake of ours that stops the test.
//
// No metric has a tenant's name, a request id or anything a client sent as a
// label: the number of series is bounded by this code.
package metrics

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Name names a metric of the table.
type Name string

// Kind is how a metric behaves.
type Kind uint8

// The kinds.
const (
	Counter Kind = iota
	Gauge
	Histogram
)

// String is the kind as Prometheus calls it.
func (k Kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// Row describes one metric.
type Row struct {
	Name   Name
	Unit   string // of the values, as in the name: seconds, tokens, pages, or "1" for plain counts
	Kind   Kind
	Help   string
	Labels []string
	// Buckets are the upper bounds of a histogram's buckets, rising.
	Buckets []float64
}

// Set holds the values of one process. It is safe for concurrent use.
type Set struct {
	registry   *prometheus.Registry
	counters   map[Name]*prometheus.CounterVec
	gauges     map[Name]*prometheus.GaugeVec
	histograms map[Name]*prometheus.HistogramVec
}

// New registers every row of the table, and the Go runtime's own metrics.
func New() *Set {
	s := &Set{prometheus.NewRegistry(), map[Name]*prometheus.CounterVec{}, map[Name]*prometheus.GaugeVec{}, map[Name]*prometheus.HistogramVec{}}
	for _, r := range Rows() {
		s.registry.MustRegister(s.vector(r))
	}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return s
}

func (s *Set) vector(r Row) prometheus.Collector {
	name := string(r.Name)
	switch r.Kind {
	case Counter:
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: r.Help}, r.Labels)
		s.counters[r.Name] = v
		if len(r.Labels) == 0 {
			v.WithLabelValues() // 0 until something is counted, not absent
		}
		return v
	case Gauge:
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: r.Help}, r.Labels)
		s.gauges[r.Name] = v
		return v
	case Histogram:
	}
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: r.Help, Buckets: r.Buckets}, r.Labels)
	s.histograms[r.Name] = v
	return v
}

// Add raises a counter by v >= 0. Labels are values in the row's order.
func (s *Set) Add(name Name, v float64, labels ...string) {
	s.counters[name].WithLabelValues(labels...).Add(v)
}

// Set sets a gauge.
func (s *Set) Set(name Name, v float64, labels ...string) {
	s.gauges[name].WithLabelValues(labels...).Set(v)
}

// Clear forgets all series of a gauge, before those that exist are set anew.
func (s *Set) Clear(name Name) { s.gauges[name].Reset() }

// Observe adds a value to a histogram.
func (s *Set) Observe(name Name, v float64, labels ...string) {
	s.histograms[name].WithLabelValues(labels...).Observe(v)
}

// Handler serves the set in Prometheus' text format. refresh is called before
// each scrape, to set the gauges that are read rather than counted.
func (s *Set) Handler(refresh func()) http.Handler {
	inner := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refresh()
		inner.ServeHTTP(w, r)
	})
}

// Markdown is the table as a document.
func Markdown() string {
	var b strings.Builder
	b.WriteString("# Metrics\n\nGenerated from the table in `internal/metrics`; a test holds the two together. No metric carries a tenant's\n" +
		"name, a request id or anything that a client sent. The Go runtime's and the process' own metrics (`go_*`,\n`process_*`) are served beside these. What a worker says of itself has series while it is up only.\n\n" +
		"| name | kind | unit | labels | meaning |\n|---|---|---|---|---|\n")
	for _, r := range Rows() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Name, r.Kind, r.Unit, strings.Join(r.Labels, ", "), r.Help)
	}
	return b.String()
}
