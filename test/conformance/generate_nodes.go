// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	betaZone   = "failure-domain.beta.kubernetes.io/zone"
	betaRegion = "failure-domain.beta.kubernetes.io/region"
	gpu        = v1.ResourceName("example.com/gpu")
	hugePages  = v1.ResourceName("hugepages-2Mi")
	giantPages = v1.ResourceName("hugepages-1Gi")
)

func (g *generator) addNodes() {
	count := 1 + g.drawFew(39)
	if g.withChance(0.3) {
		count = g.drawBetween(8, 40)
	}
	for i := range count {
		name := fmt.Sprintf("node-%02d", i)
		g.w.Nodes = append(g.w.Nodes, &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: g.nodeLabels(name)},
			Spec:       v1.NodeSpec{Taints: g.drawTaints(), Unschedulable: g.withChance(0.05)},
			Status: v1.NodeStatus{
				Allocatable: g.drawAllocatable(), Images: g.nodeImages(),
				DeclaredFeatures: g.declaredFeatures(),
			},
		})
	}
}

func (g *generator) nodeLabels(name string) map[string]string {
	if g.withChance(0.03) {
		return nil
	}
	labels := map[string]string{}
	if g.withChance(0.95) {
		labels[v1.LabelHostname] = name
		if g.withChance(0.05) {
			labels[v1.LabelHostname] = pickOne(g, "", "node-00", "other")
		}
	}

	if g.withChance(0.9) {
		labels[v1.LabelTopologyZone] = pickOne(g, "z1", "z1", "z2", "z3", "")
	}
	if g.withChance(0.85) {
		labels[v1.LabelTopologyRegion] = pickOne(g, "r1", "r1", "r2", "")
	}

	if g.withChance(0.1) {
		labels[betaZone] = pickOne(g, "z1", "z2")
		labels[betaRegion] = pickOne(g, "r1", "r2")
	}

	if g.withChance(0.6) {
		labels["disk"] = pickOne(g, "ssd", "hdd", "")
	}
	if g.withChance(0.6) {
		labels["rack"] = pickOne(g, "1", "2", "10", "many", "-3")
	}

	if g.withChance(0.3) {
		labels["app"] = pickOne(g, "web", "db")
	}
	if g.hasLeaning("keys") {
		for _, key := range moreKeys {
			if g.withChance(0.7) {
				labels[key] = pickOne(g, "1", "2", "3")
			}
		}
	}

	return labels
}

var (
	taintKeys    = []string{"dedicated", "gpu", "key1", "level", "node.kubernetes.io/not-ready", "node.kubernetes.io/memory-pressure"}
	taintValues  = []string{"", "a", "b", "5", "10"}
	taintEffects = []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}
)

func (g *generator) drawTaints() (list []v1.Taint) {
	seen := map[string]bool{}
	for g.hasLeaning("taints") && len(list) < 6 {
		t := v1.Taint{Key: pickOne(g, taintKeys...), Value: pickOne(g, taintValues...), Effect: pickOne(g, taintEffects...)}
		if g.withChance(0.6) {
			t.Effect = v1.TaintEffectPreferNoSchedule // otherwise too few nodes would remain for scoring
		}
		if g.withChance(0.3) {
			added := g.nextTime()
			t.TimeAdded = &added
		}
		if id := t.Key + string(t.Effect); !seen[id] {
			seen[id] = true
			list = append(list, t)
		}
	}
	if g.withChance(0.05) {
		list = append(list, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
	}
	return list
}

func (g *generator) drawAllocatable() v1.ResourceList {
	list := v1.ResourceList{}
	if g.hasLeaning("sizes") && g.withChance(0.6) {
		g.putAmount(list, v1.ResourceCPU, "", "0", "1", "1500m", "2", "3900m", "64")
		g.putAmount(list, v1.ResourceMemory, "", "0", "1Gi", "1234567890", "1234567890500m", "2Gi", "7900Mi", "256Gi")
		g.putAmount(list, v1.ResourcePods, "", "0", "3", "5", "10", "110")
	} else {
		g.putAmount(list, v1.ResourceCPU, "4", "8", "8", "32")
		g.putAmount(list, v1.ResourceMemory, "8Gi", "16Gi", "16Gi", "64Gi")
		g.putAmount(list, v1.ResourcePods, "10", "110", "110", "110")
	}
	g.putAmount(list, v1.ResourceEphemeralStorage, "", "0", "10Gi", "100Gi")
	g.putAmount(list, gpu, "", "0", "1", "4", "8", "8")
	g.putAmount(list, hugePages, "", "", "0", "64Mi", "1Gi")
	g.putAmount(list, giantPages, "", "", "", "2Gi")
	g.putAmount(list, "example.com/foo", "", "", "", "2")
	return list
}

const mebi = 1 << 20

// imageSizes holds the usual sizes of the images. A node may report another size.
var imageSizes = map[string]int64{
	"registry.k8s.io/small:v1": 20 * mebi, "registry.k8s.io/web:v2": 300 * mebi, "registry.k8s.io/web:latest": 320 * mebi,
	"docker.io/library/db:latest": 900 * mebi, "docker.io/library/huge:1": 4000 * mebi, "plain:latest": 500 * mebi, "plain": 700 * mebi,
	"localhost:5000/tool": 150 * mebi, "localhost:5000/tool:latest": 160 * mebi,
	"quay.io/x@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": 800 * mebi,
}

var imageNames = []string{
	"registry.k8s.io/small:v1", "registry.k8s.io/web:v2", "registry.k8s.io/web:latest", "docker.io/library/db:latest",
	"docker.io/library/huge:1", "plain:latest", "plain", "localhost:5000/tool", "localhost:5000/tool:latest",
	"quay.io/x@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
}

func (g *generator) nodeImages() (list []v1.ContainerImage) {
	for _, image := range imageNames {
		if !g.hasLeaning("images") {
			continue
		}
		size := imageSizes[image]
		if g.withChance(0.1) {
			size += int64(g.IntN(100)) * mebi
		}
		names := []string{image}
		if g.withChance(0.3) {
			names = append(names, image+"-alias")
		}
		if g.withChance(0.05) {
			names = append(names, image)
		}
		list = append(list, v1.ContainerImage{Names: names, SizeBytes: size})
		if g.withChance(0.03) { // two entries share a name
			list = append(list, v1.ContainerImage{Names: names[:1], SizeBytes: size / 2})
		}
	}
	return list
}

var featureNames = []string{
	"ExtendWebSocketsToKubelet", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits",
	"SomethingNew", "UserNamespacesHostNetworkSupport",
}

func (g *generator) declaredFeatures() []string {
	if g.withChance(0.3) {
		return nil
	}
	return drawSome(g, 0.5, featureNames...)
}
