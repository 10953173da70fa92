package bench

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Plot writes an SVG file of what a decision costs by the number of nodes, with kube-scheduler's as points.
func (r *Report) Plot(path string) error {
	p := plot.New()
	p.Title.Text = "One decision, from a pod to its node"
	p.X.Label.Text, p.X.Scale, p.X.Tick.Marker = "nodes", plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Label.Text, p.Y.Scale, p.Y.Tick.Marker = "microseconds", plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.YOffs = vg.Points(-6)
	p.Add(plotter.NewGrid())
	for i, m := range Modes {
		if err := r.plotBerth(p, i, m.Name); err != nil {
			return err
		}
	}
	if err := r.plotUpstream(p); err != nil {
		return err
	}
	p.X.Max *= 1.5
	p.Y.Max *= 30 // room for the legend
	if err := p.Save(24*vg.Centimeter, 16*vg.Centimeter, path); err != nil {
		return fmt.Errorf("write plot %s: %w", path, err)
	}
	return nil
}

func (r *Report) plotBerth(p *plot.Plot, i int, mode string) error {
	var line plotter.XYs
	for _, s := range r.Sizes {
		if s.Mode == mode && s.Decision > 0 {
			line = append(line, plotter.XY{X: float64(s.Nodes), Y: micros(s.Decision.Nanoseconds())})
		}
	}
	if len(line) == 0 {
		return nil
	}
	slices.SortFunc(line, func(a, b plotter.XY) int { return int(a.X - b.X) })
	l, points, err := plotter.NewLinePoints(line)
	if err != nil {
		return fmt.Errorf("plot %s: %w", mode, err)
	}
	l.Color, points.Color, points.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	p.Add(l, points)
	p.Legend.Add("Berth, all nodes: "+mode, l, points)
	return nil
}

func (r *Report) plotUpstream(p *plot.Plot) error {
	for i, c := range r.Compared {
		points, err := plotter.NewScatter(plotter.XYs{{X: float64(r.Nodes), Y: micros(c.Sampled.Nanoseconds())}, {X: float64(r.Nodes), Y: micros(c.All.Nanoseconds())}})
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.Mode, err)
		}
		color := slices.IndexFunc(Modes, func(m Mode) bool { return m.Name == c.Mode })
		points.Color, points.Shape, points.Radius = plotutil.Color(color), plotutil.Shape(color), vg.Points(4)
		p.Add(points)
		if i == 0 {
			p.Legend.Add("kube-scheduler, sampled and all nodes", points)
		}
	}
	return nil
}

func micros(nanoseconds int64) float64 { return float64(nanoseconds) / 1e3 }
