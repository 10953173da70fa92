package bench

import (
	"fmt"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// Plot writes an SVG file of what a decision costs by the number of nodes, with kube-scheduler's as
// points.
func (r *Report) Plot(path string) error {
	p := newPlot("One decision, from a pod to its node", "nodes")
	for i, m := range Modes {
		if err := r.plotBerth(p, i, m.Name); err != nil {
			return err
		}
	}
	if err := r.plotUpstream(p); err != nil {
		return err
	}
	return savePlot(p, path)
}

// PlotWorkloads writes an SVG file of what a decision costs by the number of workloads with
// selectors of their own, both sides, in processor time.
func (r *Report) PlotWorkloads(path string) error {
	p := newPlot(fmt.Sprintf("One decision, from a pod to its node: %s nodes, processor time", driver.Thousands(r.Nodes)), "workloads")
	for i := range selecting {
		var sampled, berth plotter.XYs
		for _, c := range r.Workloads {
			if c.Mode == selecting[i].Name {
				sampled = append(sampled, plotter.XY{X: float64(c.Apps), Y: float64(c.Sampled.CPU.Nanoseconds()) / 1e3})
				berth = append(berth, plotter.XY{X: float64(c.Apps), Y: float64(c.Berth.CPU.Nanoseconds()) / 1e3})
			}
		}
		for _, side := range []struct {
			name   string
			line   plotter.XYs
			dashes []vg.Length
		}{{"kube-scheduler, sampled: ", sampled, []vg.Length{vg.Points(4), vg.Points(3)}}, {"Berth, all nodes: ", berth, nil}} {
			if err := addLine(p, i, side.name+selecting[i].Name, side.line, side.dashes); err != nil {
				return err
			}
		}
	}

	return savePlot(p, path)
}

// newPlot has both axes logarithmic.
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

func (r *Report) plotBerth(p *plot.Plot, i int, mode string) error {
	var line plotter.XYs
	for _, s := range r.Sizes {
		if s.Mode == mode && s.Decision.Wall > 0 {
			line = append(line, plotter.XY{X: float64(s.Nodes), Y: wallMicros(s.Decision)})
		}
	}

	if len(line) == 0 {
		return nil
	}
	slices.SortFunc(line, func(a, b plotter.XY) int { return int(a.X - b.X) })
	return addLine(p, i, "Berth, all nodes: "+mode, line, nil)
}

// addLine adds the i-th line, with its points.
func addLine(p *plot.Plot, i int, name string, line plotter.XYs, dashes []vg.Length) error {
	l, points, err := plotter.NewLinePoints(line)
	if err != nil {
		return fmt.Errorf("plot %s: %w", name, err)
	}
	l.Color, l.Dashes, points.Color, points.Shape = plotutil.Color(i), dashes, plotutil.Color(i), plotutil.Shape(i)
	p.Add(l, points)
	p.Legend.Add(name, l, points)
	return nil
}

func (r *Report) plotUpstream(p *plot.Plot) error {
	for i, c := range r.Compared {
		points, err := plotter.NewScatter(plotter.XYs{{X: float64(r.Nodes), Y: wallMicros(c.Sampled)},
			{X: float64(r.Nodes), Y: wallMicros(c.All)}})
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.Mode, err)
		}
		color := slices.IndexFunc(Modes, func(m Mode) bool { return m.Name == c.Mode })
		points.Color, points.Shape, points.Radius = plotutil.Color(color), plotutil.Shape(color), vg.Points(4)
		p.Add(points)
		if i > 0 {
			continue
		}
		labels, err := plotter.NewLabels(plotter.XYLabels{XYs: points.XYs,
			Labels: []string{"   kube-scheduler, sampled", "   kube-scheduler, all nodes"}})
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.Mode, err)
		}
		p.Add(labels)
	}

	return nil
}

// decades labels powers of ten in full.
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

func wallMicros(c Cost) float64 { return float64(c.Wall.Nanoseconds()) / 1e3 }
