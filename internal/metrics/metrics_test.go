package metrics

import (
	"flag"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write docs/metrics.md anew")

const document = "../../docs/metrics.md"

func TestDocumentIsTheTable(t *testing.T) {
	if *rewrite {
		if err := os.WriteFile(document, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Markdown(), string(got)); diff != "" {
		t.Fatalf("docs/metrics.md is not the table; run go test ./internal/metrics -rewrite (-want +got):\n%s", diff)
	}
}

// The table follows Prometheus' conventions: one row a name, counters end in
// _total, units stand in the name, nothing is labelled with what clients choose.
func TestTable(t *testing.T) {
	seen := map[Name]bool{}
	for _, r := range Rows() {
		name := string(r.Name)
		if seen[r.Name] {
			t.Errorf("%s has two rows", name)
		}
		seen[r.Name] = true
		if !regexp.MustCompile(`^(bulkhead_|vllm:)[a-z0-9_]+$`).MatchString(name) {
			t.Errorf("%s is not a name of ours", name)
		}
		if (r.Kind == Counter) != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s: counters, and only they, end in _total", name, r.Kind)
		}
		if r.Unit != "1" && !strings.Contains(name, r.Unit) {
			t.Errorf("%s lacks its unit %s", name, r.Unit)
		}
		if !strings.HasSuffix(r.Help, ".") {
			t.Errorf("%s: the help is not a sentence", name)
		}
		if (r.Kind == Histogram) != (len(r.Buckets) > 0) || !slices.IsSorted(r.Buckets) {
			t.Errorf("%s: buckets %v don't suit a %s", name, r.Buckets, r.Kind)
		}
		for _, label := range r.Labels {
			if slices.Contains([]string{"tenant", "request", "user", "key", "prompt"}, label) {
				t.Errorf("%s has the label %s", name, label)
			}
		}
	}
}

// What has no labels is there before it is first counted, or the first time is missed.
func TestCountersBeginAtZero(t *testing.T) {
	w := httptest.NewRecorder()
	New().Handler(func() {}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, r := range Rows() {
		if r.Kind == Counter && len(r.Labels) == 0 && !strings.Contains(w.Body.String(), "\n"+string(r.Name)+" 0\n") {
			t.Errorf("%s is not served as 0", r.Name)
		}
	}
}

func TestEveryRowCanBeWrittenAndRead(t *testing.T) {
	s := New()
	for _, r := range Rows() {
		labels := make([]string, len(r.Labels))
		for i := range labels {
			labels[i] = "x"
		}
		switch r.Kind {
		case Counter:
			s.Add(r.Name, 1, labels...)
		case Gauge:
			s.Clear(r.Name)
			s.Set(r.Name, 1, labels...)
		case Histogram:
			s.Observe(r.Name, 1, labels...)
		}
	}
	w, refreshed := httptest.NewRecorder(), false
	s.Handler(func() { refreshed = true }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if !refreshed {
		t.Error("the gauges are not refreshed before a scrape")
	}
	for _, r := range Rows() {
		if !strings.Contains(w.Body.String(), string(r.Name)) {
			t.Errorf("%s is not served", r.Name)
		}
	}
}
