// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/scheduler/options"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
)

// startJournal starts the journal of the scheduler's inputs and decisions.
func (p *process) startJournal(first *loaded, o *runner.Options) error {
	text, err := options.YAML(p.settings.Full(first.config))
	if err != nil {
		return err
	}

	o.Seed = rand.Uint64()
	h := p.flags.JournalHeader()
	h.Build, h.Began, h.Seed, h.Configuration = version.Get().GitVersion, time.Now(), o.Seed, string(text)
	h.FirstBackoff, h.LastBackoff = o.FirstBackoff, o.LastBackoff
	h.Outside = slices.ContainsFunc(first.profiles, func(profile cycle.Profile) bool {
		return len(profile.Extensions)+len(profile.Outside)+len(profile.Extenders) > 0
	})
	if p.journal, err = journal.Create(p.flags.Journal.Dir, h, p.flags.Journal.Limits, p.logJournal); err != nil {
		return fmt.Errorf("--journal: %w", err)
	}

	p.journal.OnLost(p.recorder.LostRecord)
	if h.Outside {
		fmt.Fprintln(p.err, "--journal: out-of-tree plugins and extenders take part, whose results are not recorded; berth replay may "+
			"diverge")
	}

	o.Journal = p.journal
	return nil
}

// logJournal reports lost records, or why the journal has ended.
func (p *process) logJournal(err error) {
	klog.Background().Error(err, "The journal is not complete", "folder", p.flags.Journal.Dir)
}

// endRecord flushes and closes the journal.
func (p *process) endRecord() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := p.journal.Close(ctx); err != nil {
		klog.Background().Error(err, "Journal ended before the scheduler", "folder", p.flags.Journal.Dir)
	}
}
