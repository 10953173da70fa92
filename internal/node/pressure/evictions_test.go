// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"sigs.k8s.io/yaml"
)

// used is a pod of the text cases, with its usage.
type used struct {
	Name                          string
	Priority                      int32
	Static                        bool
	Requests, Limits, Overhead    v1.ResourceList
	PodRequests                   v1.ResourceList
	TerminationGracePeriodSeconds *int64
	Memory, PIDs, Inodes          *resource.Quantity
	Rootfs, Logs, Ephemeral       *resource.Quantity
	Volumes, MemoryVolumes        map[string]resource.Quantity
	SizeLimit                     *resource.Quantity
}

func (u used) candidate() Candidate {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: u.Name, Namespace: "default", UID: types.UID(u.Name)},
		Spec: v1.PodSpec{
			Priority: &u.Priority, Overhead: u.Overhead, TerminationGracePeriodSeconds: u.TerminationGracePeriodSeconds,
			Containers: []v1.Container{{Name: "app", Resources: v1.ResourceRequirements{Requests: u.Requests, Limits: u.Limits}}},
		},
	}
	if u.PodRequests != nil {
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: u.PodRequests}
	}
	if u.Static {
		pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	}
	for name := range u.Volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: u.SizeLimit}}})
	}
	for name := range u.MemoryVolumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}})
	}
	return Candidate{pod, u.stats()}
}

func (u used) stats() *stats.PodStats {
	if u.Memory == nil && u.PIDs == nil && u.Inodes == nil && u.Rootfs == nil && u.Logs == nil && u.Volumes == nil && u.MemoryVolumes == nil {
		return nil
	}
	amount := func(q *resource.Quantity) *uint64 {
		if q == nil {
			return nil
		}
		n := uint64(q.Value())
		return &n
	}
	fs := func(q *resource.Quantity) *stats.FsStats {
		if q == nil {
			return nil
		}
		return &stats.FsStats{UsedBytes: amount(q)}
	}
	all := &stats.PodStats{
		Memory:           &stats.MemoryStats{WorkingSetBytes: amount(u.Memory)},
		ProcessStats:     &stats.ProcessStats{ProcessCount: amount(u.PIDs)},
		EphemeralStorage: fs(u.Ephemeral),
		Containers: []stats.ContainerStats{{
			Name: "app", Memory: &stats.MemoryStats{WorkingSetBytes: amount(u.Memory)}, Rootfs: fs(u.Rootfs), Logs: fs(u.Logs)}},
	}
	if u.Inodes != nil {
		all.Containers[0].Rootfs = &stats.FsStats{InodesUsed: amount(u.Inodes)}
	}
	for _, volumes := range []map[string]resource.Quantity{u.Volumes, u.MemoryVolumes} {
		for _, name := range slices.Sorted(maps.Keys(volumes)) {
			q := volumes[name]
			all.VolumeStats = append(all.VolumeStats, stats.VolumeStats{Name: name, FsStats: *fs(&q)})
		}
	}
	return all
}

// script is the state of the text cases.
type script struct {
	core       *Core
	candidates []Candidate
}

func TestEvictionCases(t *testing.T) {
	var s script
	datadriven.RunTest(t, "testdata/evictions.txt", func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "config":
			return s.configure(t, d)
		case "pods":
			var pods []used
			unmarshal(t, d, &pods)
			s.candidates = nil
			for _, pod := range pods {
				s.candidates = append(s.candidates, pod.candidate())
			}
			return "ok"
		case "observe":
			return s.observe(t, d)
		case "rank":
			var signal string
			d.ScanArgs(t, "signal", &signal)
			starved := &Starved{Signal: Signal(signal), Resource: meanings[Signal(signal)].resource, imagesApart: d.HasArg("images-apart"), layersWithNode: d.HasArg("layers-with-node")}
			var names []string
			for _, c := range Rank(starved, s.candidates) {
				names = append(names, c.Pod.Name)
			}
			return strings.Join(names, ", ")
		}
		return "unknown command " + d.Cmd
	})
}

func unmarshal(t *testing.T, d *datadriven.TestData, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(d.Input), into); err != nil {
		t.Fatalf("%s: %v", d.Pos, err)
	}
}

func (s *script) configure(t *testing.T, d *datadriven.TestData) string {
	var in struct {
		Hard, Soft, SoftGrace, MinimumReclaim map[string]string
		Transition                            metav1.Duration
		MaxPodGrace                           int32
	}
	unmarshal(t, d, &in)
	core, err := NewCore(Config{in.Hard, in.Soft, in.SoftGrace, in.MinimumReclaim, in.Transition.Duration, in.MaxPodGrace})
	if err != nil {
		return "error: " + err.Error()
	}
	s.core = core
	var out strings.Builder
	for _, threshold := range core.thresholds {
		fmt.Fprintln(&out, threshold)
	}
	if out.Len() == 0 {
		return "no thresholds"
	}
	return out.String()
}

func (s *script) observe(t *testing.T, d *datadriven.TestData) string {
	var at time.Duration
	var text string
	d.ScanArgs(t, "at", &text)
	at, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	var observed map[Signal]string
	unmarshal(t, d, &observed)
	levels := Levels{Signals: map[Signal]Level{}}
	for signal, text := range observed {
		available, capacity, _ := strings.Cut(text, "/")
		a, c := resource.MustParse(available), resource.MustParse(capacity)
		levels.Signals[signal] = Level{a.Value(), c.Value()}
	}
	verdict := s.core.Step(levels, epoch.Add(at))
	var out strings.Builder
	out.WriteString("conditions:")
	for _, condition := range verdict.Conditions {
		out.WriteString(" " + string(condition))
	}
	if len(verdict.Conditions) == 0 {
		out.WriteString(" none")
	}
	if verdict.Starved != nil {
		if victim := Victim(verdict.Starved, Rank(verdict.Starved, s.candidates)); victim != nil {
			fmt.Fprintf(&out, "\n%s", *victim)
		} else {
			fmt.Fprintf(&out, "\nnobody may be evicted for %s", verdict.Starved.Resource)
		}
	}
	return out.String()
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
