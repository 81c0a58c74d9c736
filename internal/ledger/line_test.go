package ledger

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bulkhead-kv/bulkhead/kv"
)

// sealed is the JSON of an entry as it stands in a segment, without its hash.
func sealed(t testing.TB, e Entry) []byte {
	t.Helper()
	text, err := json.Marshal(e.toLine())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func lineEntries() []Entry {
	big := sample(3)
	big.Sequence, big.Request, big.Attempt, big.Tenant = math.MaxInt64, math.MaxInt64, math.MaxUint32, math.MaxUint64
	now := time.Unix(0, 1_800_000_000_123_456_789)
	return []Entry{{Kind: Note, Time: now}, {Kind: Pool, Event: "free", Time: now, X: kv.TransferID{Epoch: 1}}, sample(1), sample(2), big,
		{Kind: Request, Event: "failed", Time: now, Detail: "a, b: 1/2 = 0.5"}}
}

func TestSealedLinesNeedNoReflection(t *testing.T) {
	for _, e := range lineEntries() {
		e.Time = time.Unix(0, 5)
		text := sealed(t, e)
		fast, slow := new(line), new(line)
		if !fast.parse(text) {
			t.Errorf("%s is left to reflection", text)
			continue
		}
		if err := json.Unmarshal(text, slow); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(slow, fast); diff != "" {
			t.Errorf("%s is read differently (-reflection +parse):\n%s", text, diff)
		}
	}
}

func TestLinesWithEscapesAreReadToo(t *testing.T) {
	for _, detail := range []string{"a \"quoted\" word", "a < b", "naïve", "two\nlines", `\`} {
		text := sealed(t, Entry{Kind: Request, Detail: detail, Time: time.Unix(0, 5)})
		l, err := parseLine(text)
		if err != nil || l.Detail != detail {
			t.Errorf("%s is read as %+v, error %v", text, l, err)
		}
	}
}

// What parse takes, reflection reads the same way.
func FuzzLine(f *testing.F) {
	for _, e := range lineEntries() {
		f.Add(sealed(f, e))
	}
	for _, s := range []string{`{"s":01,"t":1,"k":""}`, `{"s":18446744073709551616,"t":1,"k":"x"}`, `{"s":1,"t":9223372036854775808,"k":"x"}`,
		`{"s":1,"t":1,"k":"x","i":"AA"}`, `{"s":1,"t":1,"k":"x","i":"AB=="}`, `{"s":1,"t":1,"k":"x","p":[[1,2],[3,4]]}`, `{"s":1,"t":1,"k":"x","x":{"e":"00000000000000ff","s":3,"k":256}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fast, slow := new(line), new(line)
		if !fast.parse(text) {
			return
		}
		if err := json.Unmarshal(text, slow); err != nil {
			t.Fatalf("%q is read as %+v, and is an error: %v", text, fast, err)
		}
		if diff := cmp.Diff(slow, fast); diff != "" {
			t.Fatalf("%q is read differently (-reflection +parse):\n%s", text, diff)
		}
	})
}
