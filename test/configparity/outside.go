// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package configparity

import (
	"context"

	v1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var configV1 = configv1.SchemeGroupVersion

// outsideBerth declares the plugins of outsideUpstream to Berth.
var outsideBerth = config.Options{Outside: map[string]plugins.Point{
	"MyPlugin":        plugins.PreFilter | plugins.Filters | plugins.PreScore | plugins.Score,
	"MyCustomPluginA": plugins.Score,
	"MyCustomPluginB": plugins.Score,
	"MyQueueSort":     plugins.QueueSort,
}}

type idle struct{ name string }

func (p idle) Name() string { return p.name }

type sorting struct{ idle }

func (sorting) Less(a, b fwk.QueuedEntityInfo) bool { return false }

type scoring struct{ idle }

func (scoring) Score(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) (int64, *fwk.Status) {
	return 0, nil
}

func (scoring) ScoreExtensions() fwk.ScoreExtensions { return nil }

type everywhere struct{ idle }

func (everywhere) PreFilter(context.Context, fwk.CycleState, *v1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	return nil, nil
}

func (everywhere) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (everywhere) Filter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status {
	return nil
}

func (everywhere) PreScore(context.Context, fwk.CycleState, *v1.Pod, []fwk.NodeInfo) *fwk.Status {
	return nil
}

func (everywhere) Score(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) (int64, *fwk.Status) {
	return 0, nil
}

func (everywhere) ScoreExtensions() fwk.ScoreExtensions { return nil }
