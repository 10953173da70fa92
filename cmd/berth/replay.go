package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/owned"
)

// replay is what the flags of berth replay say.
type replay struct {
	pod    string
	node   string
	goOn   bool
	config string
	failOn []string
	output string
}

func newReplayCommand() *cobra.Command {
	var r replay
	cmd := &cobra.Command{
		Use:     "replay DIR|FILE...",
		GroupID: groupAsk,
		Short:   "Play a journal of the scheduler or the controllers again",
		Long: `Replay a journal of "berth scheduler --journal DIR" in memory: with the same input
at the same times, the scheduler must decide the same. If it does not, the first
event with another outcome is printed, and the exit code is 3: this build decides
differently from the one that wrote the journal.

Journals of "berth controller --journal DIR" are replayed in the same way.

With --pod, the history of one pod is printed: when it was seen, each attempt and
its result; for the controllers, when and for which taint it has to leave, and
whether it did. With --node, what the controllers saw of one node and wrote to it.

With --config, the day is replayed under another configuration: objects appear
and disappear as recorded, requests succeed at once, and the two configurations
are compared: which pods are placed elsewhere, are pending for longer or less
long, are preempted, or are pending at the end.`,
		Example: `  berth replay /var/lib/berth/journal
  berth replay /var/lib/berth/journal --pod shop/web-0
  berth replay /var/lib/berth/controller --node node-7
  berth replay /var/lib/berth/journal --config new.yaml --fail-on pending,preempted
  berth replay 20261121T080000.000.journal -o json`,
		Args: someArguments("name the folder of a journal, or its files"),
		RunE: func(cmd *cobra.Command, args []string) error { return r.runReplay(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&r.pod, "pod", "", "print the history of this pod: NAMESPACE/NAME, or NAME in the namespace default")
	flags.StringVar(&r.node, "node", "", "print the history of this node, from a journal of the controllers")
	flags.BoolVar(&r.goOn, "keep-going", false, "go on after the first event with another outcome")
	flags.StringVar(&r.config, "config", "", "play the day under this KubeSchedulerConfiguration, and compare")
	flags.StringSliceVar(&r.failOn, "fail-on", nil,
		"with --config, end with exit code 3 if there is any: pending, preempted, longer, elsewhere")
	flags.StringVarP(&r.output, "output", "o", "", formatsUsage(answer.Formats))
	return cmd
}

// replayed is the result for one journal.
type replayed struct {
	File string `json:"file"`
	// Component is the one that wrote the journal; "" is the scheduler.
	Component string `json:"component,omitempty"`
	// Missing is the file that this one continues, if it is not there although older ones are.
	Missing string `json:"missing,omitempty"`
	// Lost is how many records are missing before this file, since the disk did not keep up.
	Lost int `json:"lost,omitempty"`
	journal.Result
	Lasted simulate.Seconds `json:"lasted"` // as Result has it
	Took   simulate.Seconds `json:"took"`
}

// replayedIn is the result for a journal that was played since a time.
func replayedIn(file, component string, result journal.Result, began time.Time) replayed {
	return replayed{
		File: file, Component: component, Result: result,
		Lasted: simulate.Seconds(result.Lasted.Round(time.Millisecond)), Took: simulate.Seconds(time.Since(began).Round(time.Microsecond)),
	}
}

func (r *replay) runReplay(cmd *cobra.Command, args []string) error {
	if err := checkFormat(r.output, answer.Formats); err != nil {
		return err
	}
	if r.wantsStory() && r.output != "" {
		return usagef("--pod and --node: go without --output")
	}
	if r.pod != "" && r.node != "" {
		return usagef("--pod: goes without --node")
	}

	if r.node != "" {
		name, err := splitName(r.node, nodeWords...)
		if err != nil {
			return err
		}
		r.node = name
	}

	if len(r.failOn) > 0 && r.config == "" {
		return usagef("--fail-on: goes with --config")
	}
	files, ofControllers, err := findJournals(args)
	if err != nil {
		return err
	}
	if err := r.checkFlags(files, ofControllers); err != nil {
		return err
	}

	if r.config != "" {
		return r.replayTrial(cmd.OutOrStdout(), cmd.ErrOrStderr(), files, findGaps(files, ofControllers))
	}
	return r.replayEach(cmd, files, ofControllers)
}

// replayEach replays file after file, and writes the stories that are wanted, or the results.
func (r *replay) replayEach(cmd *cobra.Command, files []string, ofControllers map[string]bool) error {
	var all []replayed
	out := &noticed{Writer: cmd.OutOrStdout()}
	parted, replayController, missing := false, r.replayControllers(out), findGaps(files, ofControllers)
	for _, file := range files {
		before, behind := missing[file]
		if behind && r.wantsStory() {
			records.TellAt(out.Writer, before.ends, before.String()+": what happened until now is not known")
		}
		play := r.replayFile
		if ofControllers[file] {
			play = replayController
		}
		one, err := play(out, cmd.ErrOrStderr(), file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		one.Missing, one.Lost = before.name, before.lost
		all = append(all, one)
		parted = parted || one.Parting != nil
	}

	switch {
	case out.err != nil:
		return out.err
	case r.wantsStory() && !out.any:
		return fmt.Errorf("nothing is written of %s", cmp.Or(r.node, r.podName().String()))
	}

	if !r.wantsStory() {
		if err := answer.Write(cmd.OutOrStdout(), r.output, all, func(p *answer.Page) { tellReplayed(p, all) }); err != nil {
			return err
		}
	}

	if parted {
		return heldError{errors.New("this build decides otherwise than the one that wrote the journal")}
	}
	return nil
}

func (r *replay) replayFile(out, stderr io.Writer, file string) (one replayed, err error) {
	f, err := owned.Open(file)
	if err != nil {
		return one, err
	}

	defer f.Close()
	in, err := journal.NewReader(f)
	if err != nil {
		return one, err
	}

	o := journal.Options{Profiles: profilesOf, On: r.goOn || r.wantsStory()}
	if r.wantsStory() {
		o.Each = (&journal.Story{Out: out, Pod: r.podName()}).Tell
	} else {
		each, stop := replayMeter(stderr, file)
		defer stop()
		o.Each = func(n int, record journal.Record, _ *cycle.Core) { each(n, record.At) }
	}

	began := time.Now()
	result, err := journal.Replay(in, o)
	return replayedIn(file, "", result, began), err
}

// replayMeter shows on a terminal how far a replay is.
func replayMeter(stderr io.Writer, file string) (each func(n int, at time.Time), stop func()) {
	m := startMeter(stderr)
	if !m.isShown() {
		return func(int, time.Time) {}, m.stop
	}
	return func(n int, at time.Time) {
		if n%1000 == 0 {
			m.setWords(fmt.Sprintf("replaying %s: %d events, at %s", filepath.Base(file), n, at.Format(time.DateTime)))
		}
	}, m.stop
}

// wantsStory reports whether a story is wanted.
func (r *replay) wantsStory() bool { return r.pod != "" || r.node != "" }

func (r *replay) podName() types.NamespacedName {
	namespace, name, given := strings.Cut(r.pod, "/")
	if !given {
		return types.NamespacedName{Namespace: "default", Name: r.pod}
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// profilesOf makes the profiles of a configuration in a journal.
func profilesOf(h journal.Header, text []byte) (profiles []cycle.Profile, err error) {
	c, err := h.Added.Parse("journal", text)
	if err != nil {
		return nil, err
	}
	for _, profile := range c.Profiles {
		profiles = append(profiles, cycle.Profile{Profile: profile})
	}
	return profiles, nil
}

func tellReplayed(page *answer.Page, all []replayed) {
	for i := range all {
		r := &all[i]
		speed := ""
		lasted, took := r.Lasted.Duration(), r.Took.Duration()
		if took > 0 {
			speed = fmt.Sprintf(", %.0f times as fast as it happened", lasted.Seconds()/took.Seconds())
		}

		bound := ""
		if r.Component == "" {
			bound = fmt.Sprintf(", %s bound", answer.Count(r.Bound, "pod"))
		}

		tellGap(page, r.File, gap{name: r.Missing, lost: r.Lost})
		page.Line("%s: %s, %s%s in %v; replayed in %v%s", r.File, answer.Count(r.Events, "event"), answer.Count(r.Actions, "action"),
			bound, lasted.Round(time.Second), took.Round(time.Millisecond), speed)
		if r.Cut {
			page.Line("  its last record is not complete, as a kill leaves it")
		}

		p := r.Parting
		if p == nil {
			page.Line("  the same actions, byte for byte")
			continue
		}

		page.Alarm("  parts at event %d, %s", p.Event, p.At.Format(time.RFC3339Nano))
		page.Line("  recorded: %s", cmp.Or(p.Recorded, "nothing"))
		page.Line("  replayed: %s", cmp.Or(p.Replayed, "nothing"))
	}
}

// tellGap says what is missing before a file.
func tellGap(page *answer.Page, file string, before gap) {
	if before.name != "" || before.lost > 0 {
		page.Warning("before %s, %s: that is not replayed", filepath.Base(file), before)
	}
}

// noticed notes that something was written, and the first error.
type noticed struct {
	io.Writer
	any bool
	err error
}

func (n *noticed) Write(text []byte) (int, error) {
	n.any = true
	size, err := n.Writer.Write(text)
	n.err = cmp.Or(n.err, err)
	return size, err
}
