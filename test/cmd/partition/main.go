// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// partition draws the number of nodes of each zone that have an evicting taint during a network
// partition, as recorded by a test of package nodehealth:
//
//	go test ./internal/controller/nodehealth -run Partition -partition partition.csv
//	cd test && go run ./cmd/partition partition.csv ../docs/pictures/partition.svg
package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: partition CSV SVG")
		os.Exit(2)
	}
	if err := draw(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "partition:", err)
		os.Exit(1)
	}
}

// events labels the events of the test, by the minute; see the partition test of package
// nodehealth.
var events = plotter.XYLabels{
	XYs:    plotter.XYs{{X: 2, Y: 18}, {X: 12, Y: 38}, {X: 27, Y: 75}, {X: 64, Y: 108}, {X: 77, Y: 12}},
	Labels: []string{"10 nodes of a fail", "610 of a: 0.01/s", "all of b, too: 0.1/s there", "all of all zones: none", "all are back"},
}

func draw(from, to string) error {
	rows, err := read(from)
	if err != nil {
		return err
	}

	p := plot.New()
	p.Title.Text = "A partition of 3 zones of 1,000 nodes: nodes with a taint that evicts"
	p.X.Label.Text, p.Y.Label.Text = "minutes", "nodes"
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(6), vg.Points(-6)
	p.Add(plotter.NewGrid())

	for column, zone := range rows[0][1:] {
		var steps plotter.XYs
		for _, row := range rows[1:] {
			x, errX := strconv.ParseFloat(row[0], 64)
			y, errY := strconv.ParseFloat(row[column+1], 64)
			if errX != nil || errY != nil {
				return fmt.Errorf("%s: %v: not numbers", from, row)
			}
			steps = append(steps, plotter.XY{X: x, Y: y})
		}
		line, err := plotter.NewLine(steps)
		if err != nil {
			return fmt.Errorf("plot zone %s: %w", zone, err)
		}
		line.StepStyle, line.Color, line.Width = plotter.PostStep, plotutil.Color(column), vg.Points(1.5)
		p.Add(line)
		p.Legend.Add("zone "+zone, line)
	}

	labels, err := plotter.NewLabels(events)
	if err != nil {
		return fmt.Errorf("plot events: %w", err)
	}

	p.Add(labels)
	p.X.Max, p.Y.Max = 95, 150
	if err := p.Save(24*vg.Centimeter, 12*vg.Centimeter, to); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return nil
}

func read(path string) ([][]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("%s: no rows", path)
	}
	return rows, nil
}
