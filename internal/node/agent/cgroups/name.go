package cgroups

import (
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// name is a group's place in the tree, from the top, whatever the driver.
type name []string

func (n name) below(parts ...string) name { return append(append(name{}, n...), parts...) }

// path is the group's folder below the mount of a hierarchy. systemd repeats in each slice's name
// those above it, joined by dashes, so a dash within a part is written as an underscore.
func (n name) path(driver string) string {
	if driver != Systemd {
		return "/" + path.Join(n...)
	}
	slices := make([]string, len(n))
	for i := range n {
		parts := make([]string, i+1)
		for j, part := range n[:i+1] {
			parts[j] = strings.ReplaceAll(part, "-", "_")
		}
		slices[i] = strings.Join(parts, "-") + ".slice"
	}
	return "/" + path.Join(slices...)
}

// parent is the group as CRI's cgroup_parent: a path, or with systemd the slice alone.
func (n name) parent(driver string) string {
	if driver != Systemd {
		return n.path(driver)
	}
	return path.Base(n.path(driver))
}

// podOf reads back which pod a folder belongs to; empty: to none.
func podOf(folder, driver string) types.UID {
	if driver == Systemd {
		folder = strings.TrimSuffix(folder, ".slice")
		folder = strings.ReplaceAll(folder[strings.LastIndex(folder, "-")+1:], "_", "-")
	}
	uid, found := strings.CutPrefix(folder, "pod")
	if !found {
		return ""
	}
	return types.UID(uid)
}

// class is the part of the tree for pods of a class of service.
func class(kubepods name, qos v1.PodQOSClass) name {
	if qos == v1.PodQOSGuaranteed {
		return kubepods
	}
	return kubepods.below(strings.ToLower(string(qos)))
}

func pod(kubepods name, qos v1.PodQOSClass, uid types.UID) name {
	return class(kubepods, qos).below("pod" + string(uid))
}
