// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/scheduler/options"
	"github.com/berth-k8s/berth/internal/scheduler/outoftree"
	"github.com/berth-k8s/berth/internal/scheduler/reload"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
)

// loaded is a valid configuration with its out-of-tree plugins.
type loaded struct {
	data     []byte
	config   *config.Config
	profiles []cycle.Profile
	set      *outoftree.Set
	inUse    *config.InUse // configuration in use, as reported to any client
}

// closePlugins stops the plugins once the last attempt that involves them is over.
func (l *loaded) closePlugins() { l.set.Close() }

// loadConfig parses a configuration and creates its plugins.
func (p *process) loadConfig(ctx context.Context, data []byte) (*loaded, error) {
	l := &loaded{data: data, set: outoftree.New(context.WithoutCancel(ctx), outoftree.Options{
		Factories: p.factories, Store: p.store, Client: p.client, KubeConfig: p.rest, PodsToActivate: p.podsToActivate,
		PreQueueingHints: p.flags.PreQueueingHints(), PreHinted: p.recorder.PreHinted, Panicked: p.recorder.Panics,
	})}
	unhook := context.AfterFunc(ctx, l.closePlugins) // interrupts waiting plugin factories
	read := config.Options{
		CompareTolerations: p.flags.CompareTolerations(), Probe: l.set.Probe,
		WithoutStorageScores: p.flags.WithoutStorageScores(), AllowMissingDrivers: p.flags.AllowMissingDrivers(),
		PreemptDevices: p.flags.PreemptDevices(),
	}
	if p.client != nil {
		read.PolicyFromConfigMap = options.PolicyFromConfigMap(p.client)
	}

	var err error
	if l.config, err = p.source.Parse(data, read); err == nil {
		l.profiles, err = l.set.Profiles(l.config)
	}
	if err == nil {
		err = p.flags.Profiles(rules.Mapped(l.profiles, func(p cycle.Profile) *plugins.Profile { return p.Profile }))
	}
	if err == nil {
		l.inUse, err = l.config.InUse(p.flags.Added(), p.flags.Groups)
	}
	if !unhook() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.closePlugins()
		return nil, err
	}
	return l, nil
}

// usePlugins starts the plugins and attaches them to the scheduler.
func (l *loaded) usePlugins(ctx context.Context, s *runner.Scheduler) error {
	if err := l.set.Start(ctx); err != nil {
		return err
	}
	l.set.Attach(s)
	return nil
}

// newFollower returns a watcher of the configuration file that applies its changes.
func (p *process) newFollower(ctx context.Context) *reload.Follower {
	return &reload.Follower{Read: p.source.Read, Apply: func(data []byte) error { return p.applyConfig(ctx, data) }, OnChange: p.reportApplied}
}

// applyConfig makes the configuration in data effective from the next pod on.
func (p *process) applyConfig(ctx context.Context, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, applyWithin)
	defer cancel()
	next, err := p.loadConfig(ctx, data)
	if err != nil {
		return err
	}

	settings, err := p.flags.Settings(next.config, data)
	if err == nil {
		err = next.usePlugins(ctx, p.scheduler)
	}

	var source []byte
	if err == nil {
		source, err = options.YAML(settings.Full(next.config))
	}

	if err == nil {
		err = p.scheduler.SetProfiles(ctx, next.profiles, source)
	}
	if err != nil {
		next.closePlugins()
		return err
	}

	before := p.inUse.Swap(next)
	before.closePlugins()
	log := klog.FromContext(ctx)
	for _, note := range next.config.Notes {
		log.Info("Note on the configuration", "file", p.source.Name, "note", note)
	}

	for _, field := range p.settings.Changed(settings) {
		log.Info("A change takes effect after a restart of the scheduler", "file", p.source.Name, "field", field)
	}
	return nil
}

// applyWithin bounds the time until out-of-tree plugins are ready.
const applyWithin = 2 * time.Minute

// Event reasons about the configuration.
const (
	reasonApplied = "ConfigurationApplied"
	reasonRefused = "ConfigurationRefused"
)

// reportApplied reports in the log, the metrics and an event whether a configuration change was
// applied.
func (p *process) reportApplied(err error) {
	p.recorder.Reloaded(err == nil)
	log := klog.Background()
	where, _ := os.Hostname()
	if err == nil {
		log.Info("Configuration applied", "file", p.source.Name)
		p.writeEvent(v1.EventTypeNormal, reasonApplied, fmt.Sprintf("%s on %s is in effect", filepath.Base(p.source.Name), where))
		return
	}
	log.Error(err, "Configuration refused, the last good one stays in effect", "file", p.source.Name)
	reason := strings.TrimPrefix(err.Error(), p.source.Name+": ")
	p.writeEvent(v1.EventTypeWarning, reasonRefused,
		fmt.Sprintf("%s on %s is refused, the last good one stays in effect: %s", filepath.Base(p.source.Name), where, reason))
}

// longest is the API's limit on the length of an event's message.
const longest = 1024

// writeEvent writes an event about the replicas' shared Lease, the only object that represents the
// scheduler in every deployment. A shadow writes no events.
func (p *process) writeEvent(eventType, reason, message string) {
	if p.flags.Shadow {
		return
	}
	regarding := v1.ObjectReference{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: p.settings.Lead.Namespace, Name: p.settings.Lead.Name,
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if lease, err := p.client.CoordinationV1().Leases(regarding.Namespace).Get(ctx, regarding.Name, metav1.GetOptions{}); err == nil {
		regarding.UID = lease.UID // kubectl describe finds events by UID
	}
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest-3], "") + "..."
	}
	p.events.Add(regarding, eventType, reason, message)
}

// leaseEvents writes the events of leader election.
type leaseEvents struct{ *process }

// Eventf implements resourcelock.EventRecorder.
func (e leaseEvents) Eventf(_ runtime.Object, eventType, reason, format string, args ...any) {
	go e.writeEvent(eventType, reason, fmt.Sprintf(format, args...)) // the election does not wait
}
