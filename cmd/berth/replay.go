// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/inspect/replay"
)

// replaying holds the flags of berth replay.
type replaying struct {
	replay.Player
	pod, config string
	failOn      []string
	output      string
	meter       print.Meter
}

func newReplayCommand() *cobra.Command {
	var r replaying
	cmd := &cobra.Command{
		Use:     "replay DIR|FILE...",
		GroupID: groupAsk,
		Short:   "Replay a journal of the scheduler or the controllers",
		Args:    parse.Some("name the folder of a journal, or its files"),
		RunE:    func(cmd *cobra.Command, args []string) error { return r.runReplay(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&r.pod, "pod", "", "print the history of this pod: NAMESPACE/NAME, or NAME in the namespace default")
	flags.StringVar(&r.Node, "node", "", "print the history of this node, from a journal of the controllers")
	flags.BoolVar(&r.KeepGoing, "keep-going", false, "continue after the first event with another outcome")
	flags.StringVar(&r.config, "config", "", "replay with this KubeSchedulerConfiguration, and compare")
	flags.StringSliceVar(&r.failOn, "fail-on", nil,
		"with --config, end with exit code 3 if there is any: pending, preempted, longer, elsewhere")
	flags.StringVarP(&r.output, "output", "o", "", print.FormatsUsage(answer.Formats))
	return cmd
}

func (r *replaying) runReplay(cmd *cobra.Command, args []string) (err error) {
	wantsStory := r.pod != "" || r.Node != ""
	switch {
	case wantsStory && r.output != "":
		return usagef("--pod and --node: cannot be used with --output")
	case r.pod != "" && r.Node != "":
		return usagef("--pod: cannot be used with --node")
	case len(r.failOn) > 0 && r.config == "":
		return usagef("--fail-on: requires --config")
	}
	if err := print.CheckFormat(r.output, answer.Formats); err != nil {
		return err
	}
	if r.Node != "" {
		if r.Node, err = parse.Node.NameOf(r.Node); err != nil {
			return err
		}
	}

	files, err := replay.Find(args)
	if err != nil {
		return err
	}
	for i := range files {
		switch f := &files[i]; {
		case f.Controllers && r.config != "":
			return usagef("--config: %s is a journal of the controllers; only the scheduler has such a configuration", f.Path)
		case !f.Controllers && r.Node != "":
			return usagef("--node: %s is a journal of the scheduler; only journals of the controllers contain nodes", f.Path)
		}
	}

	switch {
	case r.config != "":
		return r.compareEach(cmd, files)
	case wantsStory:
		return r.printStory(cmd, files)
	}
	r.Words = r.meter.Words
	all, err := r.playEach(cmd, files)
	if err != nil {
		return err
	}
	return cmp.Or(all.Write(cmd.OutOrStdout(), r.output), parted(all))
}

// printStory writes the history of a pod or a node.
func (r *replaying) printStory(cmd *cobra.Command, files []replay.File) error {
	subject := r.Node
	if r.pod != "" {
		namespace, name, given := strings.Cut(r.pod, "/")
		if !given {
			namespace, name = "default", r.pod
		}
		r.Pod = types.NamespacedName{Namespace: namespace, Name: name}
		subject = r.Pod.String()
	}

	out := &print.Noticed{Writer: cmd.OutOrStdout()}
	r.Story = out
	all, err := r.playEach(cmd, files)
	switch {
	case err != nil || out.Err != nil:
		return cmp.Or(err, out.Err)
	case !out.Any:
		return fmt.Errorf("no record of %s", subject)
	}
	return parted(all)
}

func (r *replaying) playEach(cmd *cobra.Command, files []replay.File) (all replay.Results, err error) {
	defer r.meter.End()
	for i := range files {
		if r.Story != nil {
			files[i].PrintGap(cmd.OutOrStdout())
		} else {
			r.meter.Begin(cmd.ErrOrStderr(), "reading")
		}
		one, err := r.Play(&files[i])
		r.meter.End()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", files[i].Path, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func parted(all replay.Results) error {
	if !slices.ContainsFunc(all, func(one replay.Played) bool { return one.Parting != nil }) {
		return nil
	}
	return print.HeldError(errors.New("this build decides differently from the build that wrote the journal"))
}

// compareEach replays the journals under another configuration.
func (r *replaying) compareEach(cmd *cobra.Command, files []replay.File) error {
	for _, name := range r.failOn {
		if !slices.Contains(replay.Conditions, name) {
			return usagef("--fail-on %q: must be one of %s", name, strings.Join(replay.Conditions, ", "))
		}
	}
	if r.pod != "" {
		return usagef("--pod: cannot be used with --config")
	}
	text, err := os.ReadFile(r.config)
	if err != nil {
		return err
	}

	var all replay.Comparisons
	defer r.meter.End()
	for i := range files {
		r.meter.Begin(cmd.ErrOrStderr(), "reading")
		c, err := replay.Compare(&files[i], r.config, text, r.meter.Words)
		r.meter.End()
		if err != nil {
			return fmt.Errorf("%s: %w", files[i].Path, err)
		}
		all = append(all, c)
	}
	if err := all.Write(cmd.OutOrStdout(), r.output); err != nil {
		return err
	}
	return print.Held(r.failOn, func(condition string) bool {
		return slices.ContainsFunc(all, func(c *replay.Compared) bool { return c.Holds(condition) })
	})
}
