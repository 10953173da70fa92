// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// PointsOf returns a plugin's extension points, by its implemented interfaces. The configuration
// may enable fewer, but not more.
func PointsOf(plugin fwk.Plugin) (points plugins.Point) {
	for _, is := range []struct {
		point plugins.Point
		it    bool
	}{
		{plugins.PreEnqueue, implementsPoint[fwk.PreEnqueuePlugin](plugin)},
		{plugins.QueueSort, implementsPoint[fwk.QueueSortPlugin](plugin)},
		{plugins.PreFilter, implementsPoint[fwk.PreFilterPlugin](plugin)},
		{plugins.Filters, implementsPoint[fwk.FilterPlugin](plugin)},
		{plugins.PostFilter, implementsPoint[fwk.PostFilterPlugin](plugin)},
		{plugins.PodGroupPostFilter, implementsPoint[fwk.PodGroupPostFilterPlugin](plugin)},
		{plugins.PreScore, implementsPoint[fwk.PreScorePlugin](plugin)},
		{plugins.Score, implementsPoint[fwk.ScorePlugin](plugin)},
		{plugins.Reserve, implementsPoint[fwk.ReservePlugin](plugin)},
		{plugins.Permit, implementsPoint[fwk.PermitPlugin](plugin)},
		{plugins.PreBind, implementsPoint[fwk.PreBindPlugin](plugin)},
		{plugins.Bind, implementsPoint[fwk.BindPlugin](plugin)},
		{plugins.PostBind, implementsPoint[fwk.PostBindPlugin](plugin)},
		{plugins.PlacementGenerate, implementsPoint[fwk.PlacementGeneratePlugin](plugin)},
		{plugins.PlacementScore, implementsPoint[fwk.PlacementScorePlugin](plugin)},
	} {
		if is.it {
			points |= is.point
		}
	}

	return points
}

// implementsPoint reports whether the plugin implements the interface T.
func implementsPoint[T any](plugin fwk.Plugin) bool {
	_, ok := plugin.(T)
	return ok
}
