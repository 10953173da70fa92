package outside

import (
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// PointsOf returns which extension points a plugin extends, by the interfaces that it implements.
func PointsOf(plugin fwk.Plugin) (points plugins.Point) {
	for _, is := range []struct {
		point plugins.Point
		it    bool
	}{
		{plugins.PreEnqueue, implements[fwk.PreEnqueuePlugin](plugin)},
		{plugins.QueueSort, implements[fwk.QueueSortPlugin](plugin)},
		{plugins.PreFilter, implements[fwk.PreFilterPlugin](plugin)},
		{plugins.Filters, implements[fwk.FilterPlugin](plugin)},
		{plugins.PostFilter, implements[fwk.PostFilterPlugin](plugin)},
		{plugins.PodGroupPostFilter, implements[fwk.PodGroupPostFilterPlugin](plugin)},
		{plugins.PreScore, implements[fwk.PreScorePlugin](plugin)},
		{plugins.Score, implements[fwk.ScorePlugin](plugin)},
		{plugins.Reserve, implements[fwk.ReservePlugin](plugin)},
		{plugins.Permit, implements[fwk.PermitPlugin](plugin)},
		{plugins.PreBind, implements[fwk.PreBindPlugin](plugin)},
		{plugins.Bind, implements[fwk.BindPlugin](plugin)},
		{plugins.PostBind, implements[fwk.PostBindPlugin](plugin)},
		{plugins.PlacementGenerate, implements[fwk.PlacementGeneratePlugin](plugin)},
		{plugins.PlacementScore, implements[fwk.PlacementScorePlugin](plugin)},
	} {
		if is.it {
			points |= is.point
		}
	}

	return points
}

func implements[T any](plugin fwk.Plugin) bool {
	_, ok := plugin.(T)
	return ok
}
