// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// journalAge is the maximum age of the journals from which the history is restored.
const journalAge = 24 * time.Hour

// RestoreHistory adds the departures and moments recorded by the scheduler's journals in a folder.
// Unreadable files are skipped, and the first error is logged.
func (w *Watcher) RestoreHistory(ctx context.Context, dir string) {
	p := &player{cluster: model.New()}
	files, err := records.Files(dir)
	for _, file := range files {
		info, unread := os.Stat(file)
		if unread == nil && time.Since(info.ModTime()) < journalAge {
			unread = p.playJournal(ctx, file)
		}
		err = cmp.Or(err, unread)
	}
	if err != nil {
		klog.FromContext(ctx).Info("History not restored completely", "journal", dir, "err", err)
	}
	p.showAt(p.at)
	w.changeCluster(func(c *model.Cluster, _ time.Time) { c.Adopt(p.cluster) })
}

// playJournal plays a journal of the scheduler into the cluster until its end or an error.
func (p *player) playJournal(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := journal.NewReader(f)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		next, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// Replacements are found when rows are shown.
		if next.At.Sub(p.at) >= model.Every {
			p.showAt(next.At)
		}
		switch e := next.Event.(type) {
		case cycle.Seen:
			p.takeStep(&record.Step{At: next.At, Object: e.Object})
		case cycle.Gone: // with the last state, in case that an earlier file has the others
			p.takeStep(&record.Step{At: next.At, Object: e.Object})
			p.takeStep(&record.Step{At: next.At, Object: e.Object, Gone: true})
		}
	}
	return ctx.Err()
}
