// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Milli is the amount of a whole GPU.
const Milli = 1000

// Node is a node of a trace.
type Node struct {
	Name        string
	CPU, Memory int64 // millicores, MiB
	GPUs        int64
	Model       string
}

// Task is a task of a trace.
type Task struct {
	Name string
	Shape
}

// Shape holds the properties that tasks may have in common.
type Shape struct {
	CPU, Memory int64 // millicores, MiB
	GPUs        int64
	GPUMilli    int64  // request of each GPU
	Models      string // allowed GPU models, separated by |; empty for any
}

// wantedGPUs returns a task's total demand for GPUs.
func (s *Shape) wantedGPUs() int64 { return s.GPUs * s.GPUMilli }

func (s *Shape) allowsModel(model string) bool {
	return s.Models == "" || slices.Contains(strings.Split(s.Models, "|"), model)
}

// Trace is the contents of a folder with nodes.csv and a file pods-MIX.csv or pods-MIX.csv.gz for
// each mix.
type Trace struct {
	Nodes []Node
	Mixes []Mix // sorted by name
	GPUs  int64
}

// Mix holds the tasks of one file.
type Mix struct {
	Name  string
	Tasks []Task
}

// ReadTrace reads a trace from a folder. Errors name the file, the line and the field.
func ReadTrace(dir string) (*Trace, error) {
	t := &Trace{}
	err := readTable(filepath.Join(dir, "nodes.csv"), func(r *row) {
		n := Node{r.textOf("sn"), r.parseNumber("cpu_milli", 1), r.parseNumber("memory_mib", 1), r.parseNumber("gpu", 0), r.textOf("model")}
		if n.GPUs > 64 {
			r.setError("gpu", "%d is more than 64", n.GPUs)
		}
		t.Nodes = append(t.Nodes, n)
		t.GPUs += n.GPUs
	})

	if err != nil {
		return nil, err
	}
	if t.GPUs == 0 {
		return nil, fmt.Errorf("%s: no node has a GPU", filepath.Join(dir, "nodes.csv"))
	}

	files, err := filepath.Glob(filepath.Join(dir, "pods-*.csv*"))
	if err != nil {
		return nil, err
	}

	for _, file := range files {
		if err := t.readMix(file); err != nil {
			return nil, err
		}
	}

	if len(t.Mixes) == 0 {
		return nil, fmt.Errorf("%s: there is no pods-MIX.csv or pods-MIX.csv.gz", dir)
	}
	return t, nil
}

func (t *Trace) readMix(file string) error {
	name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "pods-"), ".gz"), ".csv")
	for i := range t.Mixes {
		if t.Mixes[i].Name == name {
			return fmt.Errorf("%s: mix %s is there twice", file, name)
		}
	}

	m := Mix{Name: name}
	var wanted int64
	err := readTable(file, func(r *row) {
		s := Task{r.textOf("name"), Shape{r.parseNumber("cpu_milli", 0), r.parseNumber("memory_mib", 0), r.parseNumber("num_gpu", 0),
			r.parseNumber("gpu_milli", 0), r.optionalText("gpu_spec")}}
		switch {
		case s.GPUs == 0:
			s.GPUMilli = 0
		case s.GPUMilli == 0 || s.GPUMilli > Milli:
			r.setError("gpu_milli", "%d is not in 1 to %d", s.GPUMilli, Milli)
		case s.GPUs > 1 && s.GPUMilli < Milli:
			r.setError("gpu_milli", "%d of each of %d GPUs: only one GPU can be shared", s.GPUMilli, s.GPUs)
		}
		wanted += s.wantedGPUs()
		m.Tasks = append(m.Tasks, s)
	})

	if err != nil {
		return err
	}
	if wanted == 0 {
		return fmt.Errorf("%s: no task wants a GPU", file)
	}

	t.Mixes = append(t.Mixes, m)
	return nil
}

// row is a line of a CSV file.
type row struct {
	file    string
	line    int
	columns map[string]int
	fields  []string
	err     error // first error
}

func (r *row) setError(column, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s:%d: %s: %s", r.file, r.line, column, fmt.Sprintf(format, args...))
	}
}

func (r *row) optionalText(column string) string {
	if at, ok := r.columns[column]; ok {
		return r.fields[at]
	}
	return ""
}

func (r *row) textOf(column string) string {
	if _, ok := r.columns[column]; !ok {
		r.setError(column, "there is no such column")
		return ""
	}
	text := r.optionalText(column)
	if text == "" {
		r.setError(column, "is empty")
	}
	return text
}

func (r *row) parseNumber(column string, least int64) int64 {
	text := r.textOf(column)
	if r.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > 1<<40 {
		r.setError(column, "%q is not a whole number of at least %d", text, least)
	}
	return n
}

// readTable calls each for every line of a CSV file after the header.
func readTable(file string, each func(*row)) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}

	defer f.Close()
	var from io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if from, err = gzip.NewReader(f); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}

	table := csv.NewReader(from)
	r := &row{file: file, columns: map[string]int{}}
	for {
		r.fields, err = table.Read()
		switch {
		case errors.Is(err, io.EOF) && len(r.columns) == 0:
			return fmt.Errorf("%s: is empty", file)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", file, err)
		}
		r.line, _ = table.FieldPos(0)
		if len(r.columns) == 0 {
			for i, name := range r.fields {
				r.columns[name] = i
			}
			continue
		}
		if each(r); r.err != nil {
			return r.err
		}
	}
}
