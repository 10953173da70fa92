// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/inspect/trial"
)

// Compared is the comparison for one journal.
type Compared struct {
	File   string `json:"file"`
	Config string `json:"config"`
	Gap
	*trial.Comparison
}

// Conditions lists the conditions of a comparison.
var Conditions = []string{"pending", "preempted", "longer", "elsewhere"}

// Holds reports whether one of the conditions holds.
func (c *Compared) Holds(condition string) bool {
	switch condition {
	case "pending":
		return len(c.Pending) > 0
	case "preempted":
		return len(c.Preempted) > 0
	case "longer":
		return len(c.Longer) > 0
	}
	return len(c.Elsewhere) > 0
}

// Compare plays a journal under its own configuration and under another one, read from a file.
func Compare(f *File, config string, text []byte, words func(string)) (*Compared, error) {
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in := file.scheduler
	if in.Header.Outside {
		return nil, errors.New("out-of-tree plugins or extenders took part, which cannot be replayed")
	}
	known, err := trial.Recall(in)
	if err != nil {
		return nil, err
	}

	play := func(how string, configuration []byte) (*trial.Course, error) {
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		in, err := journal.NewReader(file)
		if err != nil {
			return nil, err
		}
		o := trial.Options{Recorded: ProfilesOf, Known: known, Progress: func(passed time.Duration) {
			words(fmt.Sprintf("%s: %v of the day", how, passed.Round(time.Second)))
		}}
		if configuration != nil {
			if o.Profiles, err = ProfilesOf(in.Header, configuration); err != nil {
				return nil, err
			}
		}
		return trial.Play(in, o)
	}

	before, err := play("as it was configured", nil)
	if err != nil {
		return nil, err
	}
	after, err := play("under "+config, text)
	if err != nil {
		return nil, fmt.Errorf("under %s: %w", config, err)
	}
	return &Compared{f.Path, config, f.Gap, trial.Compare(before, after)}, nil
}

// Comparisons holds the comparisons of several journals.
type Comparisons []*Compared

// Write writes the comparisons in one of answer.Formats, and otherwise as text.
func (all Comparisons) Write(out io.Writer, format string) error {
	return answer.Write(out, format, all, func(page *answer.Page) {
		for _, c := range all {
			c.print(page)
		}
	})
}

// mostPrinted is the maximum number of pods of a kind listed by name; -o json lists all.
const mostPrinted = 10

func (c *Compared) print(page *answer.Page) {
	c.Gap.print(page, c.File)
	page.Heading("%s under %s", c.File, c.Config)
	row := func(name string, of func(s *trial.Summary) any) []string {
		return []string{name, fmt.Sprint(of(&c.Before)), fmt.Sprint(of(&c.After))}
	}
	page.Table("  ", [][]string{
		{"", "BEFORE", "AFTER"},
		row("pods", func(s *trial.Summary) any { return s.Pods }),
		row("placed", func(s *trial.Summary) any { return s.Placed }),
		row("pending at the end", func(s *trial.Summary) any { return s.Pending }),
		row("preempted", func(s *trial.Summary) any { return s.Preempted }),
		row("nodes with pods", func(s *trial.Summary) any { return s.Nodes }),
		row("wait, median", func(s *trial.Summary) any { return formatWait(s, s.Median) }),
		row("wait, 99 %", func(s *trial.Summary) any { return formatWait(s, s.Percentile) }),
		row("wait, longest", func(s *trial.Summary) any { return formatWait(s, s.Longest) }),
	})

	for _, name := range slices.Sorted(maps.Keys(c.Unserved)) {
		page.Warning("  No profile of %s serves the scheduler %q, of %s.", c.Config, name, answer.Count(c.Unserved[name], "pod"))
	}

	waited := func(w trial.Waited) string {
		return fmt.Sprintf("%s/%s %s, was %s", w.Namespace, w.Name.Name, formatSeconds(w.After), formatSeconds(w.Before))
	}
	named := func(n trial.Name) string { return n.Namespace + "/" + n.Name }
	printFew(page, "placed elsewhere", c.Elsewhere, func(m trial.Moved) string {
		return fmt.Sprintf("%s/%s on %s, was %s", m.Namespace, m.Name.Name, m.After, m.Before)
	})
	printFew(page, "waited longer", c.Longer, waited)
	printFew(page, "waited less", c.Shorter, waited)
	printFew(page, "preempted now", c.Preempted, named)
	printFew(page, "preempted no longer", c.NoLonger, named)
	printFew(page, "pending now", c.Pending, named)
	printFew(page, "pending no longer", c.NowPlaced, named)
	page.Line("  Replayed with its own configuration, %d of %s are placed as recorded%s.", c.Agreed,
		answer.Count(c.Recorded, "bound pod"), preemptedNote(c.Comparison))
}

// preemptedNote reports the number of preempted pods, if a replay under the same configuration
// preempts more or fewer.
func preemptedNote(c *trial.Comparison) string {
	if c.RecordedPreempted == c.Before.Preempted {
		return ""
	}
	return fmt.Sprintf(", and %d instead of %d are preempted", c.Before.Preempted, c.RecordedPreempted)
}

// formatWait formats the waiting times of placed pods.
func formatWait(s *trial.Summary, of float64) string {
	if s.Placed == 0 {
		return "-"
	}
	return formatSeconds(of)
}

func formatSeconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

// printFew prints the length of the list, and its first entries by name.
func printFew[T any](page *answer.Page, words string, list []T, name func(T) string) {
	if len(list) == 0 {
		page.Line("  %s: none", words)
		return
	}
	page.Line("  %s: %d", words, len(list))
	for _, one := range list[:min(len(list), mostPrinted)] {
		page.Line("    %s", name(one))
	}
	if len(list) > mostPrinted {
		page.Line("    and %d more", len(list)-mostPrinted)
	}
}
