// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// family is a metric in a scrape, with its type and the names of its labels.
type family struct {
	kind   string
	labels map[string]bool
}

var (
	typeLine   = regexp.MustCompile(`^# TYPE (\S+) (\S+)`)
	sampleLine = regexp.MustCompile(`^([a-z0-9_]+)\{(.*)\} `)
	labelName  = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
	suffix     = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// families returns the metrics of a scrape.
func families(scrape string) map[string]*family {
	all := map[string]*family{}
	for line := range strings.Lines(scrape) {
		if found := typeLine.FindStringSubmatch(line); found != nil {
			all[found[1]] = &family{kind: found[2], labels: map[string]bool{}}
			continue
		}
		found := sampleLine.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		f := all[found[1]]
		if f == nil {
			f = all[suffix.ReplaceAllString(found[1], "")]
		}
		for _, label := range labelName.FindAllStringSubmatch(found[2], -1) {
			if f != nil && label[1] != "le" {
				f.labels[label[1]] = true
			}
		}
	}
	return all
}

// tabled returns the metrics in the table of docs/reference/metrics-parity.md.
func (c *cluster) tabled() map[string]family {
	c.Helper()
	page, err := os.ReadFile("../../docs/reference/metrics-parity.md")
	if err != nil {
		c.Fatal(err)
	}
	all := map[string]family{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (\\w+) \\| ([a-z_, ]*) \\|").FindAllStringSubmatch(string(page), -1) {
		f := family{kind: row[2], labels: map[string]bool{}}
		for label := range strings.SplitSeq(row[3], ", ") {
			if label != "" {
				f.labels[label] = true
			}
		}
		all[row[1]] = f
	}
	return all
}

// knows verifies that docs/reference/metrics-parity.md lists all metrics in the scrape of an
// upstream component whose names have one of the prefixes, with the same type and labels.
func (c *cluster) knows(component, scrape string, begins ...string) {
	c.Helper()
	page, met := c.tabled(), 0
	libraries := 0
	for name, f := range families(scrape) {
		row, known := page[name]
		ours := slices.ContainsFunc(begins, func(b string) bool { return strings.HasPrefix(name, b) })
		switch {
		case !known && ours:
			c.Errorf("%s serves %s, which docs/reference/metrics-parity.md does not have", component, name)
		case !known:
			libraries++
		case ours:
			met++
			if row.kind != f.kind || len(f.labels) > 0 && !maps.Equal(row.labels, f.labels) {
				c.Errorf("%s serves %s as %s with %v; the page has it as %s with %v", component, name, f.kind, f.labels, row.kind, row.labels)
			}
		}
	}
	c.Logf("%s: %s serves %d metrics by names of its own, which are on the page, and %d of its libraries' that are not", c.release, component, met, libraries)
	if met == 0 {
		c.Errorf("%s serves none of %v", component, begins)
	}
}
