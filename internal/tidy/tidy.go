// Package tidy checks the shape of the code itself.
//
// Its tests hold ARCHITECTURE.md's package table to the code, both ways, and the
// tree to the rules that a compiler does not know.
package tidy

import (
	"fmt"
	"strings"
)

// Row is a line of the package table: what a package is for, which of our
// packages it imports, and the rule it keeps ("pure", "public" or none).
type Row struct {
	Package string // path below the module, e.g. "kv/pool"
	Purpose string
	Imports []string
	Rule    string
}

// ParseTable reads the table under the heading "## Packages" of ARCHITECTURE.md.
// Cells are package, purpose, imports separated by spaces, rule.
func ParseTable(doc string) ([]Row, error) {
	_, section, found := strings.Cut(doc, "\n## Packages\n")
	if !found {
		return nil, fmt.Errorf("no section \"## Packages\"")
	}
	var rows []Row
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "## ") {
			break
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| package ") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			return nil, fmt.Errorf("row %q has %d cells, want 4", strings.TrimSpace(line), len(cells))
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, Row{cells[0], cells[1], strings.Fields(cells[2]), cells[3]})
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("the package table is empty")
	}
	return rows, nil
}
