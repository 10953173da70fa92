// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// KindFragmentation is the kind of the report.
const KindFragmentation = "Fragmentation"

// Fragmentation reports how much of the free devices the pending and expected pods can use.
//
// Free devices are worth only as much as pods can use: two free GPUs are worth nothing on a node
// without free CPU. The scheduler's plugin Fragmentation computes this for the expected pods, and
// the report prints the results.
type Fragmentation struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	// Resource is the extended resource provided by the devices, and Unit is the amount per device.
	Resource v1.ResourceName `json:"resource"`
	Unit     int64           `json:"unit"`
	// Learnt is set if the expected pods were learnt from running and pending pods. Otherwise the
	// plugin's arguments in the scheduler's configuration define them.
	Learnt bool `json:"learnt"`
	// By is one of Pools.
	By     string    `json:"by"`
	Groups []Devices `json:"groups"`
	Total  Devices   `json:"total"`
	// Pods lists the kinds of pods that want devices, pending or expected.
	Pods []PodKind `json:"pods"`
	// Tasks lists all expected pods, as arguments of the plugin Fragmentation.
	Tasks []plugins.FragmentationTask `json:"tasks"`
}

// Devices sums the devices of a group of nodes, in thousandths of a device. 2500 is two devices and
// half of a shared one.
type Devices struct {
	Name  string `json:"name"`
	Nodes int    `json:"nodes"`
	Size  int64  `json:"size"`
	Free  int64  `json:"free"`
	// Usable is the amount the next pod can use, on average. Left is the amount expected to remain
	// in the end, when no further pod fits.
	Usable int64 `json:"usable"`
	Left   int64 `json:"left"`
}

// PodKind is a kind of pods that want devices.
type PodKind struct {
	CPU     int64 `json:"cpu"`     // millicores
	Memory  int64 `json:"memory"`  // bytes
	Devices int64 `json:"devices"` // thousandths of a device
	// Pending counts the pending pods; Share is the share of all expected pods, in percent.
	Pending int     `json:"pending,omitempty"`
	Share   float64 `json:"share,omitempty"`
	// Fit is the number of pods of this kind that the free room could take if no other pods
	// arrived. It is summed node by node, so it counts whole pods.
	Fit  int64 `json:"fit"`
	kind plugins.Coming
}

// Pools are the ways to group nodes. With "pool", nodes without a pool label are grouped by shape.
var Pools = []string{"pool", "shape", "zone", "node"}

// FragmentationOf runs the plugin on all nodes. It omits nodes without devices of the plugin's
// resource.
func FragmentationOf(w *simulate.World, f plugins.DeviceValuer, by string, source simulate.Source) *Fragmentation {
	c := w.Cluster()
	s := &Fragmentation{APIVersion: simulate.APIVersion, Kind: KindFragmentation, Source: source, By: by, Learnt: !f.IsGiven(),
		Groups: []Devices{}, Pods: []PodKind{}, Tasks: []plugins.FragmentationTask{}, Total: Devices{Name: "total"}}
	s.Resource, s.Unit = f.Resource()

	s.listKinds(w, f)
	at := map[string]int{}
	for _, n := range c.SortedNodes() {
		room := f.RoomOf(c, n)
		if room.Size == 0 {
			continue
		}

		name := groupOf(n, by)
		i, known := at[name]
		if !known {
			i = len(s.Groups)
			at[name] = i
			s.Groups = append(s.Groups, Devices{Name: name})
		}
		s.Groups[i].addRoom(&room)
		s.Total.addRoom(&room)
		// Fit assumes that only pods of one kind use the room, so the numbers of different kinds
		// must not be summed.
		for i := range s.Pods {
			s.Pods[i].Fit += f.Fitting(n, &s.Pods[i].kind)
		}
	}

	slices.SortStableFunc(s.Groups, func(a, b Devices) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// listKinds lists the kinds of pods that want devices: pending kinds first, then by share. It
// merges kinds with the same requests and the same node selector and affinity.
func (s *Fragmentation) listKinds(w *simulate.World, f plugins.DeviceValuer) {
	at := map[string]int{}
	add := func(kind plugins.Coming, pending int, share float64) {
		if kind.Devices() == 0 {
			return
		}
		key := fmt.Sprint(
			kind.Requests.Cpu().MilliValue(), kind.Requests.Memory().Value(), kind.Devices(), kind.NodeSelector, kind.NodeAffinity)
		i, known := at[key]
		if !known {
			i = len(s.Pods)
			at[key] = i
			s.Pods = append(s.Pods, PodKind{
				CPU: kind.Requests.Cpu().MilliValue(), Memory: kind.Requests.Memory().Value(), Devices: kind.Devices(), kind: kind,
			})
		}
		s.Pods[i].Pending += pending
		s.Pods[i].Share += 100 * share
	}

	// Learn all pending pods before evaluating the first, because the expected pods depend on all
	// of them.
	for _, p := range w.Queue() {
		f.LearnPod(p)
	}
	for _, p := range w.Queue() {
		add(f.ComingOf(p), 1, 0)
	}
	for _, kind := range f.WhatComes(w.Cluster()) {
		s.Tasks = append(s.Tasks, kind.FragmentationTask)
		add(kind, 0, kind.Share)
	}
	slices.SortStableFunc(s.Pods, func(a, b PodKind) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(b.Share, a.Share))
	})
}

// addRoom adds a node's devices.
func (d *Devices) addRoom(room *plugins.DeviceRoom) {
	d.Nodes++
	d.Size += room.Size
	d.Free += room.Free
	d.Usable += room.Usable
	d.Left += room.Left
}

// Write writes the report as tables, in one of answer.Formats, or as names.
func (s *Fragmentation) Write(out io.Writer, format string) error {
	return answer.Write(out, format, s, func(page *answer.Page) { s.writeForPeople(page, format == "wide") })
}

// Names returns the groups.
func (s *Fragmentation) Names() []string {
	return answer.Mapped(s.Groups, func(d Devices) string { return s.By + "/" + d.Name })
}

// Fingerprint holds the parts of the report whose changes are shown: the groups, the total and the
// number of kinds of pods. Callers polling for changes compare it.
func (s *Fragmentation) Fingerprint() string { return fmt.Sprint(s.Groups, s.Total, len(s.Pods)) }

// mostKinds limits the kinds of pods listed without -o wide. Pending kinds and the most frequently
// expected kinds are first.
const mostKinds = 10

// writeForPeople writes the table of groups, and the table of kinds of pods. Without wide, groups
// with the most unusable devices are first, and the remaining ones are only counted.
func (s *Fragmentation) writeForPeople(page *answer.Page, wide bool) {
	if len(s.Groups) == 0 {
		page.Line("No node has %s (--resource names another one).", s.Resource)
		page.Line("\n%s.", s.Source)
		return
	}

	rows := [][]string{{strings.ToUpper(s.By), "NODES", "DEVICES", "FREE", "USABLE", "LEFT OVER", ""}}
	list := s.Groups
	if !wide && len(list) > mostGroups {
		list = slices.Clone(list)
		slices.SortStableFunc(list, func(a, b Devices) int { return cmp.Compare(b.Free-b.Usable, a.Free-a.Usable) })
		list = list[:mostGroups]
	}

	rows = append(rows, answer.Mapped(list, Devices.tableRow)...)
	if len(s.Groups) > 1 {
		rows = append(rows, s.Total.tableRow())
	}

	page.Table("", rows)
	if more := len(s.Groups) - len(list); more > 0 {
		page.Line("and %d more of which less is unusable (-o wide lists them all)", more)
	}

	page.Line("\nUsable is what the next pod can use of %s, on average over the expected pods; left over is what is expected to remain "+
		"when none of them fits any more. In the bars: # taken, . usable, x free and not usable.", s.Resource)
	s.printKinds(page, wide)
	page.Line("\n%s.", s.Source)
}

// printKinds prints the kinds of pods that want devices, and how many more of each would fit.
func (s *Fragmentation) printKinds(page *answer.Page, wide bool) {
	if len(s.Pods) == 0 {
		page.Line("The expected pods are not known: no running or pending pod requests %s.", s.Resource)
		return
	}

	how := "given by the scheduler's configuration"
	if s.Learnt {
		how = "learnt from the pods that run or are pending"
	}
	page.Line("")
	page.Heading("Pods that request devices (the expected pods are %s):", how)

	list := s.Pods
	if !wide {
		list = list[:min(len(list), mostKinds)]
	}
	rows := answer.Mapped(list, func(k PodKind) []string {
		return []string{showDevices(k.Devices), showCPU(k.CPU), showMemory(k.Memory), fmt.Sprint(k.Pending), fmt.Sprintf("%.1f %%", k.Share), fmt.Sprint(k.Fit)}
	})
	page.Table("", slices.Insert(rows, 0, []string{"DEVICES", "CPU", "MEMORY", "PENDING", "EXPECTED", "MORE WOULD FIT"}))
	if more := len(s.Pods) - len(list); more > 0 {
		page.Line("and %d more kinds (-o wide lists them all)", more)
	}
}

// tableRow returns a group's row, in devices.
func (d Devices) tableRow() []string {
	return []string{
		d.Name, fmt.Sprint(d.Nodes), showDevices(d.Size), showDevices(d.Free), showDevices(d.Usable), showDevices(d.Left), d.bar(),
	}
}

// barWidth is the number of characters in a bar.
const barWidth = 30

// bar draws the devices.
//
//	###############.........xxxxxx    half is taken, 30 % usable, the rest free and of no use
func (d Devices) bar() string {
	if d.Size == 0 {
		return ""
	}
	taken, usable := int((d.Size-d.Free)*barWidth/d.Size), int(d.Usable*barWidth/d.Size)
	return strings.Repeat("#", taken) + strings.Repeat(".", usable) + strings.Repeat("x", barWidth-taken-usable)
}

// showDevices formats thousandths of a device with one decimal, if needed.
func showDevices(thousandths int64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(thousandths)/1000), ".0")
}
