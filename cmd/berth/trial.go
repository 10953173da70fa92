package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/inspect/trial"
	"github.com/berth-k8s/berth/internal/owned"
)

// compared is the comparison for one journal.
type compared struct {
	File   string `json:"file"`
	Config string `json:"config"`
	// Missing is the file that this one continues, if it is not there although older ones are.
	Missing string `json:"missing,omitempty"`
	// Lost is how many records are missing before this file, since the disk did not keep up.
	Lost int `json:"lost,omitempty"`
	*trial.Comparison
}

// trialConditions are the conditions of --fail-on, apart from a difference in the replay.
var trialConditions = map[string]func(*trial.Comparison) bool{
	"pending":   func(c *trial.Comparison) bool { return len(c.Pending) > 0 },
	"preempted": func(c *trial.Comparison) bool { return len(c.Preempted) > 0 },
	"longer":    func(c *trial.Comparison) bool { return len(c.Longer) > 0 },
	"elsewhere": func(c *trial.Comparison) bool { return len(c.Elsewhere) > 0 },
}

// replayTrial replays the journals under another configuration.
func (r *replay) replayTrial(out, stderr io.Writer, files []string, missing map[string]gap) error {
	for _, name := range r.failOn {
		if trialConditions[name] == nil {
			return usagef("--fail-on %q: must be one of pending, preempted, longer, elsewhere", name)
		}
	}

	if r.pod != "" {
		return usagef("--pod: goes without --config")
	}
	text, err := os.ReadFile(r.config)
	if err != nil {
		return err
	}

	var all []compared
	var held []string
	for _, file := range files {
		c, err := r.compareReplays(stderr, file, text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, compared{file, r.config, missing[file].name, missing[file].lost, c})
		for _, name := range r.failOn {
			if trialConditions[name](c) && !slices.Contains(held, name) {
				held = append(held, name)
			}
		}
	}

	if err := answer.Write(out, r.output, all, func(p *answer.Page) { tellCompared(p, all) }); err != nil {
		return err
	}
	if len(held) > 0 {
		return heldError{fmt.Errorf("--fail-on %s: condition met", strings.Join(held, ", "))}
	}
	return nil
}

// compareReplays replays a journal under its own configuration and under the other one.
func (r *replay) compareReplays(stderr io.Writer, file string, configuration []byte) (*trial.Comparison, error) {
	m := startMeter(stderr)
	defer m.stop()
	f, err := owned.Open(file)
	if err != nil {
		return nil, err
	}

	defer f.Close()
	read := func() (*journal.Reader, error) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		return journal.NewReader(f)
	}

	in, err := read()
	if err != nil {
		return nil, err
	}
	if in.Header.Outside {
		return nil, fmt.Errorf("out-of-tree plugins or extenders took part, which cannot be replayed")
	}

	known, err := trial.Recall(in)
	if err != nil {
		return nil, err
	}

	play := func(words string, other bool) (*trial.Course, error) {
		in, err := read()
		if err != nil {
			return nil, err
		}
		o := trial.Options{Recorded: profilesOf, Known: known, Progress: func(passed time.Duration) {
			if m.isShown() {
				m.setWords(fmt.Sprintf("%s: %v of the day", words, passed.Round(time.Second)))
			}
		}}
		if other {
			if o.Profiles, err = profilesOf(in.Header, configuration); err != nil {
				return nil, err
			}
		}
		return trial.Play(in, o)
	}

	before, err := play("as it was configured", false)
	if err != nil {
		return nil, err
	}

	after, err := play("under "+r.config, true)
	if err != nil {
		return nil, fmt.Errorf("under %s: %w", r.config, err)
	}
	return trial.Compare(before, after), nil
}

// mostTold is how many pods of a kind are listed by name; -o json has all.
const mostTold = 10

func tellCompared(page *answer.Page, all []compared) {
	for i := range all {
		c := &all[i]
		tellGap(page, c.File, gap{name: c.Missing, lost: c.Lost})
		page.Heading("%s under %s", c.File, c.Config)
		row := func(name, format string, of func(s *trial.Summary) any) []string {
			return []string{name, fmt.Sprintf(format, of(&c.Before)), fmt.Sprintf(format, of(&c.After))}
		}

		page.Table("  ", [][]string{
			{"", "AS IT WAS", "NOW"},
			row("pods", "%d", func(s *trial.Summary) any { return s.Pods }),
			row("placed", "%d", func(s *trial.Summary) any { return s.Placed }),
			row("pending at the end", "%d", func(s *trial.Summary) any { return s.Pending }),
			row("preempted", "%d", func(s *trial.Summary) any { return s.Preempted }),
			row("nodes with pods", "%d", func(s *trial.Summary) any { return s.Nodes }),
			row("wait, median", "%s", func(s *trial.Summary) any { return formatWait(s, s.Median) }),
			row("wait, 99 %", "%s", func(s *trial.Summary) any { return formatWait(s, s.Percentile) }),
			row("wait, longest", "%s", func(s *trial.Summary) any { return formatWait(s, s.Longest) }),
		})

		for _, name := range slices.Sorted(maps.Keys(c.Unserved)) {
			page.Warning("  No profile of %s serves the scheduler %q, of %s.", c.Config, name, answer.Count(c.Unserved[name], "pod"))
		}
		printFew(page, "placed elsewhere", len(c.Elsewhere), func(i int) string {
			m := &c.Elsewhere[i]
			return fmt.Sprintf("%s/%s on %s, was %s", m.Namespace, m.Name.Name, m.After, m.Before)
		})

		waited := func(list []trial.Waited) func(i int) string {
			return func(i int) string {
				w := &list[i]
				return fmt.Sprintf("%s/%s %s, was %s", w.Namespace, w.Name.Name, formatSeconds(w.After), formatSeconds(w.Before))
			}
		}

		printFew(page, "waited longer", len(c.Longer), waited(c.Longer))
		printFew(page, "waited less", len(c.Shorter), waited(c.Shorter))
		named := func(list []trial.Name) func(i int) string {
			return func(i int) string { return list[i].Namespace + "/" + list[i].Name }
		}
		printFew(page, "preempted now", len(c.Preempted), named(c.Preempted))
		printFew(page, "preempted no longer", len(c.NoLonger), named(c.NoLonger))
		printFew(page, "pending now", len(c.Pending), named(c.Pending))

		printFew(page, "pending no longer", len(c.NowPlaced), named(c.NowPlaced))
		page.Line("  Played under its own configuration, %d of %s go where they went%s.", c.Agreed,
			answer.Count(c.Recorded, "bound pod"), preemptedNote(c.Comparison))
	}
}

// preemptedNote says how many pods were preempted, if a replay under the same configuration
// preempts more or fewer.
func preemptedNote(c *trial.Comparison) string {
	if c.RecordedPreempted == c.Before.Preempted {
		return ""
	}
	return fmt.Sprintf(", and %d instead of %d are preempted", c.Before.Preempted, c.RecordedPreempted)
}

// formatWait is how long placed pods have waited.
func formatWait(s *trial.Summary, of float64) string {
	if s.Placed == 0 {
		return "-"
	}
	return formatSeconds(of)
}

func formatSeconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

// printFew prints how many there are, and the first by name.
func printFew(page *answer.Page, words string, n int, name func(i int) string) {
	if n == 0 {
		page.Line("  %s: none", words)
		return
	}
	page.Line("  %s: %d", words, n)
	for i := range min(n, mostTold) {
		page.Line("    %s", name(i))
	}
	if n > mostTold {
		page.Line("    and %d more", n-mostTold)
	}
}
