package inplace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/features"
	upstream "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/scheduler/live"
	"github.com/berth-k8s/berth/internal/scheduler/outside"
	"github.com/berth-k8s/berth/test/inplace/hook"
)

func init() {
	if os.Getenv("BERTH_INPLACE") == "no" {
		return
	}
	hook.NewScheduler, hook.RunNodeHealth, hook.RunEviction = newScheduler, runNodeHealth, runEviction
}

// binders is `berth scheduler`'s default.
const binders = 32

func newScheduler(ctx context.Context, with hook.Scheduler) (run func(context.Context)) {
	schedule, err := prepare(ctx, with)
	return func(ctx context.Context) {
		if err == nil {
			err = schedule(ctx)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			klog.FromContext(ctx).Error(err, "Berth's scheduler does not run")
		}
	}
}

// prepare makes the plugins and the scheduler.
func prepare(ctx context.Context, with hook.Scheduler) (run func(context.Context) error, err error) {
	file, err := fileOf(with)
	if err != nil {
		return nil, err
	}
	factories := map[string]outside.Factory{}
	for name, factory := range with.Plugins {
		factories[name] = factory
	}
	store := outside.NewStore()
	set := outside.New(ctx, outside.Options{
		Factories: factories, Store: store, Client: with.Client, KubeConfig: with.KubeConfig, PodsToActivate: with.PodsToActivate,
	})
	read, err := config.Parse("integration.yaml", file, config.Options{
		Probe: set.Probe, CompareTolerations: on(features.TaintTolerationComparisonOperators),
	})
	if err != nil {
		return nil, err
	}
	profiles, err := set.Profiles(read)
	if err != nil {
		return nil, err
	}
	s, err := live.New(with.Client, with.Client, live.Options{
		Profiles: profiles, Objects: store,
		Groups: groups.Gates{
			Generic: on(features.GenericWorkload), Gang: on(features.GangScheduling), Topology: on(features.TopologyAwareWorkloadScheduling),
			Preemption: on(features.WorkloadAwarePreemption),
		},
		FirstBackoff: orInstant(with.FirstBackoff), LastBackoff: orInstant(with.LastBackoff), MaxWait: with.MaxWait,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		defer set.Close()
		if err := set.Start(ctx); err != nil {
			return err
		}
		set.Attach(s)
		return s.Run(ctx, binders)
	}, nil
}

func on(gate featuregate.Feature) bool { return utilfeature.DefaultFeatureGate.Enabled(gate) }

// orInstant keeps a back-off of nothing from being taken for none said.
func orInstant(d time.Duration) time.Duration { return max(d, time.Nanosecond) }

// fileOf writes the configuration as a file of kube-scheduler's.
func fileOf(with hook.Scheduler) ([]byte, error) {
	var defaults configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&defaults)
	var c upstream.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&defaults, &c, nil); err != nil {
		return nil, err
	}
	c.Profiles, c.Extenders = with.Profiles, with.Extenders
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	if !ok {
		return nil, fmt.Errorf("no serializer for %s", runtime.ContentTypeYAML)
	}
	return runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion), &c)
}
