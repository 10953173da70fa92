// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Plot writes an SVG file with the cost of a decision by the number of nodes: lines for Berth, and
// points for kube-scheduler.
func (r *Report) Plot(path string) error {
	p := newPlot("One decision, from a pod to its node", "nodes")
	for i, m := range Modes {
		var line plotter.XYs
		for _, s := range r.Sizes {
			if s.Mode == m.Name && s.Decision.Wall > 0 {
				line = append(line, pointOf(s.Nodes, s.Decision.Wall))
			}
		}
		slices.SortFunc(line, func(a, b plotter.XY) int { return int(a.X - b.X) })
		if err := addLine(p, i, "Berth, all nodes: "+m.Name, line, nil); err != nil {
			return err
		}
		if err := r.plotUpstream(p, i, m.Name); err != nil {
			return fmt.Errorf("plot %s: %w", m.Name, err)
		}
	}
	return savePlot(p, path)
}

// PlotWorkloads writes an SVG file with the processor time of a decision by the number of workloads
// with distinct selectors, for both schedulers.
func (r *Report) PlotWorkloads(path string) error {
	p := newPlot(fmt.Sprintf("One decision, from a pod to its node: %s nodes, processor time", driver.Thousands(r.Nodes)), "workloads")
	for i, m := range driver.Selecting {
		var sampled, berth plotter.XYs
		for _, c := range r.Workloads {
			if c.Mode == m.Name {
				sampled, berth = append(sampled, pointOf(c.Apps, c.Sampled.CPU)), append(berth, pointOf(c.Apps, c.Berth.CPU))
			}
		}
		dashes := []vg.Length{vg.Points(4), vg.Points(3)}
		if err := addLine(p, i, "kube-scheduler, sampled: "+m.Name, sampled, dashes); err != nil {
			return err
		}
		if err := addLine(p, i, "Berth, all nodes: "+m.Name, berth, nil); err != nil {
			return err
		}
	}
	return savePlot(p, path)
}

// pointOf returns a point with the cost of a decision in microseconds.
func pointOf(x int, took time.Duration) plotter.XY {
	return plotter.XY{X: float64(x), Y: float64(took.Nanoseconds()) / 1e3}
}

// newPlot returns a plot with two logarithmic axes.
func newPlot(title, x string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.X.Scale, p.X.Tick.Marker = x, plot.LogScale{}, decades{}
	p.Y.Label.Text, p.Y.Scale, p.Y.Tick.Marker = "microseconds", plot.LogScale{}, decades{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.YOffs, p.Legend.XOffs, p.Legend.Padding = vg.Points(-6), vg.Points(6), vg.Points(2)
	p.Add(plotter.NewGrid())
	return p
}

func savePlot(p *plot.Plot, path string) error {
	p.X.Max *= 1.5
	p.Y.Max *= 30 // room for the legend
	if err := p.Save(24*vg.Centimeter, 16*vg.Centimeter, path); err != nil {
		return fmt.Errorf("write plot %s: %w", path, err)
	}
	return nil
}

// addLine adds the i-th line with its points. It adds nothing if there are no points.
func addLine(p *plot.Plot, i int, name string, line plotter.XYs, dashes []vg.Length) error {
	if len(line) == 0 {
		return nil
	}
	l, points, err := plotter.NewLinePoints(line)
	if err != nil {
		return fmt.Errorf("plot %s: %w", name, err)
	}
	l.Color, l.Dashes, points.Color, points.Shape = plotutil.Color(i), dashes, plotutil.Color(i), plotutil.Shape(i)
	p.Add(l, points)
	p.Legend.Add(name, l, points)
	return nil
}

// plotUpstream adds the points of the i-th mode. The points of the first mode have labels.
func (r *Report) plotUpstream(p *plot.Plot, i int, mode string) error {
	k := slices.IndexFunc(r.Compared, func(c Comparison) bool { return c.Mode == mode })
	if k < 0 {
		return nil
	}
	xys := plotter.XYs{pointOf(r.Nodes, r.Compared[k].Sampled.Wall), pointOf(r.Nodes, r.Compared[k].All.Wall)}
	points, err := plotter.NewScatter(xys)
	if err != nil {
		return err
	}
	points.Color, points.Shape, points.Radius = plotutil.Color(i), plotutil.Shape(i), vg.Points(4)
	p.Add(points)
	if k > 0 {
		return nil
	}

	names := []string{"   kube-scheduler, sampled", "   kube-scheduler, all nodes"}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: xys, Labels: names})
	if err != nil {
		return err
	}
	p.Add(labels)
	return nil
}

// decades places ticks at powers of ten and labels them with all digits.
type decades struct{}

func (decades) Ticks(low, high float64) []plot.Tick {
	ticks := plot.LogTicks{Prec: -1}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" && ticks[i].Value >= 1 {
			ticks[i].Label = driver.Thousands(int(ticks[i].Value + 0.5))
		}
	}
	return ticks
}
