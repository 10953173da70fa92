// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	upstream "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/scheduler/outoftree"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
	"github.com/berth-k8s/berth/test/inplace/hook"
)

func init() {
	if os.Getenv("BERTH_INPLACE") == "no" {
		return
	}
	hook.NewScheduler, hook.RunNodeHealth, hook.RunEviction = newScheduler, runNodeHealth, runEviction
}

// binders is the default of `berth scheduler`.
const binders = 32

// made is Berth's scheduler with the methods that upstream's tests call.
type made struct {
	set       *outoftree.Set
	scheduler *runner.Scheduler
	err       error         // error of its creation
	leads     chan struct{} // closed by Run

	begun sync.Once // guards the start, which sets stop and ended
	stop  context.CancelFunc
	ended chan struct{}
}

func newScheduler(ctx context.Context, scheduler hook.Scheduler) hook.Made {
	m := &made{leads: make(chan struct{})}
	m.err = m.prepare(ctx, scheduler)
	return m
}

// prepare creates the plugins and the scheduler.
func (m *made) prepare(ctx context.Context, scheduler hook.Scheduler) error {
	file, err := fileOf(scheduler)
	if err != nil {
		return err
	}

	factories := map[string]outoftree.Factory{}
	for name, factory := range scheduler.Plugins {
		factories[name] = func(ctx context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			return factory(ctx, argsOf(scheduler.Profiles, h.ProfileName(), name), h)
		}
	}

	store := outoftree.NewStore()
	m.set = outoftree.New(ctx, outoftree.Options{
		Factories: factories, Store: store, Client: scheduler.Client, KubeConfig: scheduler.KubeConfig, PodsToActivate: scheduler.PodsToActivate,
		PreQueueingHints: isEnabled(features.SchedulerPreQueueingHints),
	})
	read, err := config.Parse("integration.yaml", file, config.Options{
		Probe: m.set.Probe, CompareTolerations: isEnabled(features.TaintTolerationComparisonOperators),
		WithoutStorageScores: !isEnabled(features.StorageCapacityScoring), AllowMissingDrivers: !isEnabled(features.VolumeLimitScaling),
	})

	if err != nil {
		return err
	}
	profiles, err := m.set.Profiles(read)
	if err != nil {
		return err
	}

	m.scheduler, err = runner.New(scheduler.Client, scheduler.Client, runner.Options{
		Profiles: profiles, Objects: store, Lead: m.leads,
		Groups: groups.Gates{
			Generic: isEnabled(features.GenericWorkload), Topology: isEnabled(features.TopologyAwareWorkloadScheduling),
			Claims: isEnabled(features.DRAWorkloadResourceClaims), Policy: isEnabled(features.PodGroupPreemptionPolicy),
			Composite: isEnabled(features.CompositePodGroup),
		},
		ResizePreemption: isEnabled(features.InPlacePodVerticalScalingSchedulerPreemption),
		Disabled: cycle.Disabled{
			PopFromBackoff: !isEnabled(features.SchedulerPopFromBackoffQ), Expectation: !isEnabled(features.NominatedNodeNameForExpectation),
			DeviceTaintRules: !isEnabled(features.DRADeviceTaintRules),
		},
		FirstBackoff: orInstant(scheduler.FirstBackoff), LastBackoff: orInstant(scheduler.LastBackoff), MaxWait: scheduler.MaxWait,
	})

	return err
}

// Follow implements hook.Made. The scheduler follows the cluster without making decisions.
func (m *made) Follow(ctx context.Context) {
	m.begin(ctx)
	for m.err == nil && !m.scheduler.Synced() {
		select {
		case <-m.ended:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// Run implements hook.Made.
func (m *made) Run(ctx context.Context) {
	close(m.leads)
	m.begin(ctx)
	defer context.AfterFunc(ctx, m.stop)()
	<-m.ended
}

// Waits implements hook.Made.
func (m *made) Waits(ctx context.Context, namespace, name string) bool {
	if m.err != nil {
		return false
	}
	d, err := m.scheduler.Decision(ctx, namespace, name)
	return err == nil && d != nil && d.Queue != nil && (d.Queue.Place == queue.Waiting.String() || d.Queue.Place == queue.Gated.String())
}

// Resizes implements hook.Made.
func (m *made) Resizes(ctx context.Context, namespace, name string) (attempts int, queued bool) {
	if m.err != nil {
		return 0, false
	}
	if d, err := m.scheduler.Decision(ctx, namespace, name); err == nil && d != nil && d.Queue != nil {
		return d.Queue.Attempts, true
	}
	return 0, false
}

// begin starts the scheduler, which makes no decisions before Run has been called.
func (m *made) begin(ctx context.Context) {
	m.begun.Do(func() {
		ctx, m.stop = context.WithCancel(ctx)
		m.ended = make(chan struct{})
		go func() {
			defer close(m.ended)
			if err := m.schedule(ctx); err != nil && !errors.Is(err, context.Canceled) {
				klog.FromContext(ctx).Error(err, "Berth's scheduler does not run")
			}
		}()
	})
}

func (m *made) schedule(ctx context.Context) error {
	if m.err != nil {
		return m.err
	}
	defer m.set.Close()
	if err := m.set.Start(ctx); err != nil {
		return err
	}
	m.set.Attach(m.scheduler)
	return m.scheduler.Run(ctx, binders)
}

func isEnabled(gate featuregate.Feature) bool { return utilfeature.DefaultFeatureGate.Enabled(gate) }

// orInstant replaces a zero back-off by a minimal one, because zero means unset.
func orInstant(d time.Duration) time.Duration { return max(d, time.Nanosecond) }

// argsOf returns a test's arguments for its plugin. Configuration files may not be able to contain
// arguments of their type.
func argsOf(profiles []upstream.KubeSchedulerProfile, profile, plugin string) runtime.Object {
	for _, p := range profiles {
		for _, c := range p.PluginConfig {
			if p.SchedulerName == profile && c.Name == plugin {
				return c.Args
			}
		}
	}
	return nil
}

// fileOf encodes the configuration as a configuration file of kube-scheduler, without the arguments
// of out-of-tree plugins.
func fileOf(scheduler hook.Scheduler) ([]byte, error) {
	var defaults configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&defaults)
	var c upstream.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&defaults, &c, nil); err != nil {
		return nil, err
	}
	c.Profiles, c.Extenders = slices.Clone(scheduler.Profiles), scheduler.Extenders
	for i, p := range c.Profiles {
		c.Profiles[i].Plugins = p.Plugins.DeepCopy()
		if p.Plugins != nil && len(p.Plugins.MultiPoint.Enabled) == 0 { // a configuration file would enable the default plugins here
			c.Profiles[i].Plugins.MultiPoint.Disabled = []upstream.Plugin{{Name: "*"}}
		}
		c.Profiles[i].PluginConfig = slices.DeleteFunc(slices.Clone(p.PluginConfig),
			func(c upstream.PluginConfig) bool { return scheduler.Plugins[c.Name] != nil })
	}
	sortAlike(c.Profiles)
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	if !ok {
		return nil, fmt.Errorf("no serializer for %s", runtime.ContentTypeYAML)
	}
	return runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion), &c)
}

// sortAlike copies the queue sort plugin of one profile to the profiles without one, because a
// configuration file requires equal queue sort plugins. Upstream rejects profiles with different
// queue sort plugins.
func sortAlike(profiles []upstream.KubeSchedulerProfile) {
	var silent []*upstream.PluginSet
	var said []upstream.Plugin
	for _, p := range profiles {
		switch {
		case p.Plugins == nil:
		case len(p.Plugins.QueueSort.Enabled) > 0:
			said = p.Plugins.QueueSort.Enabled
		default:
			silent = append(silent, &p.Plugins.QueueSort)
		}
	}
	for _, one := range silent {
		one.Enabled = said
	}
}
