// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodeparity

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"
	_ "unsafe" // for linkname

	v1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	_ "k8s.io/kubernetes/pkg/kubelet/eviction" // provides the functions linked below
	signals "k8s.io/kubernetes/pkg/kubelet/eviction/api"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

type statsOf = func(*v1.Pod) (stats.PodStats, bool)

//go:linkname buildSignalToRankFunc k8s.io/kubernetes/pkg/kubelet/eviction.buildSignalToRankFunc
func buildSignalToRankFunc(imagesApart, layersApart bool) map[signals.Signal]func([]*v1.Pod, statsOf)

//go:linkname evictionMessage k8s.io/kubernetes/pkg/kubelet/eviction.evictionMessage
func evictionMessage(name v1.ResourceName, pod *v1.Pod, of statsOf, thresholds []signals.Threshold, observed map[signals.Signal]bool) (string, map[string]string)

// resources maps signals to resources, like the kubelet's own table.
var resources = map[pressure.Signal]v1.ResourceName{
	pressure.Memory: v1.ResourceMemory, pressure.AllocatableMemory: v1.ResourceMemory, pressure.PIDs: "pids",
	pressure.NodeFs: v1.ResourceEphemeralStorage, pressure.NodeFsInodes: "inodes", pressure.ImageFs: v1.ResourceEphemeralStorage, pressure.ImageFsInodes: "inodes",
}

// thresholdText matches the sentence of the message about the threshold. The kubelet's message
// lacks this sentence because the test passes no thresholds to the kubelet.
var thresholdText = regexp.MustCompile(`Threshold quantity: \S+, available: \S+\. `)

// TestEvictionOrder verifies that Berth's ranking leaves pods in the kubelet's order unchanged, and
// that the message and the annotations of the victim are the kubelet's.
func TestEvictionOrder(t *testing.T) {
	byUse := 0
	each(t, func(d dice) string {
		signal := pick(d, pressure.Memory, pressure.AllocatableMemory, pressure.PIDs, pressure.NodeFs, pressure.NodeFsInodes, pressure.ImageFs, pressure.ImageFsInodes)
		imagesApart, layersApart := d.oneIn(2), d.oneIn(2)
		pods, use := d.pods(7), map[*v1.Pod]*stats.PodStats{}
		for _, pod := range pods {
			d.volumes(pod)
			if !d.oneIn(10) {
				use[pod] = d.usage(pod)
			}
		}
		of := func(pod *v1.Pod) (stats.PodStats, bool) {
			if use[pod] == nil {
				return stats.PodStats{}, false
			}
			return *use[pod], true
		}
		buildSignalToRankFunc(imagesApart, imagesApart && layersApart)[signals.Signal(signal)](pods, of)

		starved := starve(signal, imagesApart, imagesApart && layersApart)
		var theirs []pressure.Candidate
		for _, pod := range pods {
			theirs = append(theirs, pressure.Candidate{Pod: pod, Usage: use[pod]})
		}
		ours := pressure.Rank(starved, theirs) // a stable sort: an ordered list is unchanged
		if !slices.Equal(names(ours), names(theirs)) {
			return fmt.Sprintf("%s, images apart %t, layers with the node %t: ours %v, the kubelet's %v", signal, imagesApart, layersApart, names(ours), names(theirs))
		}
		victim := pressure.Victim(starved, ours)
		if victim == nil {
			return ""
		}
		byUse++
		message, annotations := evictionMessage(resources[signal], victim.Pod, of, nil, nil)
		if got := thresholdText.ReplaceAllString(victim.Message, ""); got != message {
			return fmt.Sprintf("ours %q, the kubelet's %q", got, message)
		}
		if fmt.Sprint(victim.Annotations) != fmt.Sprint(annotations) {
			return fmt.Sprintf("annotations: ours %v, the kubelet's %v", victim.Annotations, annotations)
		}
		return ""
	})
	if byUse < *worlds/2 {
		t.Errorf("only %d of %d worlds had a victim", byUse, *worlds)
	}
}

// starve exhausts the signal's resource on a node.
func starve(signal pressure.Signal, imagesApart, layersWithNode bool) *pressure.Starved {
	config := pressure.Config{Hard: map[string]string{string(signal): "10"}}
	if signal == pressure.AllocatableMemory {
		config.Hard = map[string]string{string(pressure.Memory): "10"}
	}
	core, err := pressure.NewCore(config)
	if err != nil {
		panic(err)
	}
	return core.Step(pressure.Levels{
		Signals:     map[pressure.Signal]pressure.Level{signal: {Available: 1, Capacity: 100}},
		ImagesApart: imagesApart, LayersWithNode: layersWithNode,
	}, time.Now()).Starved
}

func names(candidates []pressure.Candidate) (all []string) {
	for _, c := range candidates {
		all = append(all, c.Pod.Name)
	}
	return all
}

func (d dice) volumes(pod *v1.Pod) {
	if d.oneIn(2) {
		pod.Spec.Volumes = []v1.Volume{
			{Name: "disk", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
			{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{}}},
			{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}},
		}
	}
}

// usage returns random statistics of a pod. Some are missing, as in a kubelet that has only begun
// to measure. There are few different amounts, so that many are equal.
func (d dice) usage(pod *v1.Pod) *stats.PodStats {
	bytes := func() *uint64 {
		n := uint64(d.IntN(6) * 30)
		return &n
	}
	fs := func() *stats.FsStats {
		if d.oneIn(12) {
			return nil
		}
		return &stats.FsStats{UsedBytes: bytes(), InodesUsed: bytes()}
	}
	use := &stats.PodStats{PodRef: stats.PodReference{Name: pod.Name, UID: string(pod.UID)}}
	if !d.oneIn(12) {
		use.Memory = &stats.MemoryStats{WorkingSetBytes: bytes()}
	}
	if !d.oneIn(12) {
		use.ProcessStats = &stats.ProcessStats{ProcessCount: bytes()}
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		container := stats.ContainerStats{Name: c.Name, Rootfs: fs(), Logs: fs()}
		if !d.oneIn(12) {
			container.Memory = &stats.MemoryStats{WorkingSetBytes: bytes()}
		}
		use.Containers = append(use.Containers, container)
	}
	for _, volume := range pod.Spec.Volumes {
		use.VolumeStats = append(use.VolumeStats, stats.VolumeStats{Name: volume.Name, FsStats: stats.FsStats{UsedBytes: bytes(), InodesUsed: bytes()}})
	}
	return use
}
