package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnknownVariablesNameTheNearest(t *testing.T) {
	known := flagVariables(newRoot())
	for _, variable := range []string{"BULKHEAD_CONFIG", "BULKHEAD_HOME", "BULKHEAD_LISTEN", "BULKHEAD_API_KEY", "BULKHEAD_TENANTS"} {
		if !slices.Contains(known, variable) {
			t.Errorf("%s is not known", variable)
		}
	}
	for name, want := range map[string]string{
		"BULKHEAD_LISEN":   `"BULKHEAD_LISEN", did you mean BULKHEAD_LISTEN?`,
		"BULKHEAD_APIKEY":  `"BULKHEAD_APIKEY", did you mean BULKHEAD_API_KEY?`,
		"BULKHEAD_listen":  `"BULKHEAD_listen", did you mean BULKHEAD_LISTEN?`,
		"BULKHEAD_MODEL":   `"BULKHEAD_MODEL"`,
		"BULKHEAD_":        `"BULKHEAD_"`,
		"BULKHEAD_A\nB":    `"BULKHEAD_A\nB"`,
		"BULKHEAD_LISTEN":  "",
		"OTHER_LISEN":      "",
		"BULKHEAD_SMOLLM2": "",
	} {
		if got := strings.Join(unknownVariables([]string{name + "=secret"}, known), "; "); got != want {
			t.Errorf("with %q set the warning names %s, want %s", name, got, want)
		}
	}
}

func TestUnknownVariablesAreBounded(t *testing.T) {
	var environment []string
	for i := range 20 {
		environment = append(environment, fmt.Sprintf("BULKHEAD_%s%02d=", strings.Repeat("X", 1000), i))
	}
	got := unknownVariables(environment, flagVariables(newRoot()))
	if len(got) != strangersNamedMax+1 || got[strangersNamedMax] != "and 12 more" || len(got[0]) > nameShownMax+2 {
		t.Errorf("20 variables with long names give %d names, the last %q", len(got), got[len(got)-1])
	}
}

func TestTestVariablesAreThoseOfTheTestScript(t *testing.T) {
	text, err := os.ReadFile("../../scripts/test")
	if err != nil {
		t.Fatal(err)
	}
	var set []string
	for _, m := range regexp.MustCompile(`(BULKHEAD_[A-Z0-9_]+)=`).FindAllStringSubmatch(string(text), -1) {
		set = append(set, m[1])
	}
	slices.Sort(set)
	if diff := cmp.Diff(set, testVariables); diff != "" {
		t.Errorf("scripts/test sets other variables than commands know (-set +known):\n%s", diff)
	}
}
