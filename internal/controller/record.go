// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/controller/nodehealth/nodecontroller"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/kube/instrument"
)

// lostRecords counts the records lost by both journals. This file starts and ends the journals;
// package controllerjournal defines their contents.
var lostRecords = instrument.Counter("berth_journal_lost_records_total",
	"Records that --journal has lost: the disk did not keep up, or the journal has ended. "+
		"The log names them, and the next file records the gap.")

// startJournal starts the journal of a controller if --journal is set, and passes it to record. end
// writes the queued records.
func startJournal[O any, J interface {
	OnLost(count func())
	Close(ctx context.Context) error
}](c *Controller, name string, create func(dir, build string, o O, l records.Limits, tell func(error)) (J, error), options O,
	record func(J)) (end func(), err error) {
	if c.options.Journal.Dir == "" {
		return func() {}, nil
	}
	j, err := create(c.journalOf(name), version.Get().GitVersion, options, c.journalLimits(), c.logJournal)
	if err != nil {
		return nil, fmt.Errorf("--journal: %w", err)
	}
	j.OnLost(lostRecords.Inc)
	record(j)
	return func() { c.endRecord(j.Close) }, nil
}

// journalOf returns the journal folder of a controller. Each controller has a separate core, and
// therefore a separate journal.
func (c *Controller) journalOf(name string) string { return filepath.Join(c.options.Journal.Dir, name) }

// journalLimits divides the size of the journals between the enabled controllers, so that
// --journal's limit applies to the whole folder.
func (c *Controller) journalLimits() records.Limits {
	l := c.options.Journal.Limits
	if c.options.evictsPods() && c.options.isEnabled(nodecontroller.Name) {
		l.Size /= 2
	}
	return l
}

// logJournal reports lost records, or the reason a journal has ended.
func (c *Controller) logJournal(err error) {
	klog.Background().Error(err, "The journal is not complete", "folder", c.options.Journal.Dir)
}

// endRecord ends a journal within five seconds: the process is ending, and a hanging disk must not
// delay it.
func (c *Controller) endRecord(end func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := end(ctx); err != nil {
		klog.Background().Error(err, "Journal ended before the controller", "folder", c.options.Journal.Dir)
	}
}
