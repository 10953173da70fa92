// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Detail implements Detailer. It lists AwaitedVolumes, a text for all nodes. For claims that wait
// for the choice of a node, it lists the topologies and the capacity that keep a volume off the
// node.
func (*VolumeBinding) Detail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	text := AwaitedVolumes(c, p)
	var perNode []func(*cluster.Node) string
	claims, _ := usableClaims(c, p)
	for _, claim := range claims {
		if waits, err := waitsForConsumer(c, claim); err == nil && waits && claim.Spec.VolumeName == "" {
			perNode = append(perNode, unprovisionable(c, claim))
		}
	}

	return func(n *cluster.Node) string {
		var all []string
		if text != "" {
			all = append(all, text)
		}
		for _, of := range perNode {
			if text := of(n); text != "" {
				all = append(all, text)
			}
		}
		return strings.Join(all, "; ")
	}
}

// Brief implements Briefer.
func (*VolumeBinding) Brief(c *cluster.Cluster, p *cluster.Pod) string { return AwaitedVolumes(c, p) }

// AwaitedVolumes lists the unbound claims that do not wait for a node to be chosen, each with the
// missing object or the component that it waits for. A pod with a feasible node waits only for
// these claims.
func AwaitedVolumes(c *cluster.Cluster, p *cluster.Pod) string {
	var list []string
	claims, _ := usableClaims(c, p)
	for _, claim := range claims {
		waits, err := waitsForConsumer(c, claim)
		switch {
		case err != nil || fullyBound(claim):
		case !waits || claim.Spec.VolumeName != "":
			list = append(list, fmt.Sprintf("persistentvolumeclaim %q: %s", claim.Name, whyUnbound(c, claim)))
		default:
			if awaited := awaitedBy(c, claim); awaited != "" {
				list = append(list, fmt.Sprintf("persistentvolumeclaim %q waits for %s", claim.Name, awaited))
			}
		}
	}
	return strings.Join(list, "; ")
}

// provisionedWithin is longer than a working provisioner takes to make a volume.
const provisionedWithin = time.Minute

// StalledClasses returns the storage classes whose provisioner makes no volumes: a claim of the
// class has waited for longer than provisionedWithin, or the CSI driver leaves no trace in the
// cluster. Traces may be missing if only a part of the cluster is known (whole is false); then a
// claim must be waiting as well.
func StalledClasses(c *cluster.Cluster, now time.Time, whole bool) (classes map[string]bool) {
	classes = map[string]bool{}
	for _, claim := range c.Claims.All() {
		asked := metav1.HasAnnotation(claim.ObjectMeta, annSelectedNode) && !claim.CreationTimestamp.IsZero()
		class, ok := c.StorageClasses.Get("", claimClass(claim))
		if ok && asked && claim.Spec.VolumeName == "" &&
			(now.Sub(claim.CreationTimestamp.Time) >= provisionedWithin || !leavesTrace(c, class.Provisioner)) {
			classes[class.Name] = true
		}
	}
	for _, class := range c.StorageClasses.All() {
		if whole && !leavesTrace(c, class.Provisioner) {
			classes[class.Name] = true
		}
	}
	return classes
}

// leavesTrace reports whether a provisioner is installed or has made a volume. A provisioner with a
// slash in its name is no CSI driver and does not register, so it counts as installed.
func leavesTrace(c *cluster.Cluster, provisioner string) bool {
	if _, installed := c.CSIDrivers.Get("", provisioner); installed || strings.Contains(provisioner, "/") {
		return true
	}
	return slices.ContainsFunc(c.CSINodes.All(), func(n *storagev1.CSINode) bool {
		return slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == provisioner })
	}) || slices.ContainsFunc(c.Volumes.All(), func(v *v1.PersistentVolume) bool {
		return v.Spec.CSI != nil && v.Spec.CSI.Driver == provisioner
	})
}

// AwaitedOf returns AwaitedVolumes if the pod has an unbound claim of one of the storage classes.
func AwaitedOf(c *cluster.Cluster, p *cluster.Pod, classes map[string]bool) string {
	if len(classes) == 0 {
		return ""
	}
	claims, _ := usableClaims(c, p)
	if !slices.ContainsFunc(claims, func(claim *v1.PersistentVolumeClaim) bool {
		return claim.Spec.VolumeName == "" && classes[claimClass(claim)]
	}) {
		return ""
	}
	return AwaitedVolumes(c, p)
}

// awaitedBy returns what a claim waits for after a node or volume was chosen for it: the
// provisioner to make a volume, or the volume controller to bind one. It returns "" if neither was
// chosen.
func awaitedBy(c *cluster.Cluster, claim *v1.PersistentVolumeClaim) string {
	if node, ok := claim.Annotations[annSelectedNode]; ok {
		class, _ := c.StorageClasses.Get("", claimClass(claim))
		return fmt.Sprintf("%s to make a volume of storageclass %q on %s", class.Provisioner, class.Name, node)
	}
	for _, volume := range c.Volumes.All() {
		if boundTo(volume, claim) && metav1.HasAnnotation(volume.ObjectMeta, annBoundByController) {
			return fmt.Sprintf("the volume controller to bind persistentvolume %q", volume.Name)
		}
	}
	return ""
}

// whyUnbound explains why a claim that does not wait for a node to be chosen is unbound: the remedy
// depends on whether a volume, a class or a provisioner is missing.
func whyUnbound(c *cluster.Cluster, claim *v1.PersistentVolumeClaim) string {
	name := claimClass(claim)
	class, ok := c.StorageClasses.Get("", name)
	size := claim.Spec.Resources.Requests.Storage().String()
	switch volume, there := c.Volumes.Get("", claim.Spec.VolumeName); {
	case claim.Spec.VolumeName != "" && !there:
		return fmt.Sprintf("persistentvolume %q not found", claim.Spec.VolumeName)
	case there:
		return fmt.Sprintf("is not bound to persistentvolume %q yet", volume.Name)
	case name == "":
		return fmt.Sprintf("has no storageclass, and no volume of %s is free", size)
	case !ok:
		return fmt.Sprintf("storageclass %q not found", name)
	case class.Provisioner == noProvisioner:
		return fmt.Sprintf("no volume of storageclass %q and %s is free", name, size)
	}
	return fmt.Sprintf("%s has not made a volume of storageclass %q yet", class.Provisioner, name)
}
