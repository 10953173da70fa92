package devices

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Grant is what a plugin gives a container with its devices.
type Grant struct {
	Env         map[string]string `json:"env,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Nodes       []Node            `json:"nodes,omitempty"`
	// CDI are the names of devices that the container runtime knows by the Container Device
	// Interface.
	CDI []string `json:"cdi,omitempty"`
}

// Mount is a file or folder of the machine.
type Mount struct {
	Container string `json:"container"`
	Host      string `json:"host"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// Node is a device node of the machine.
type Node struct {
	Container   string `json:"container"`
	Host        string `json:"host"`
	Permissions string `json:"permissions,omitempty"`
}

// Given is the sum of a container's grants. Where two name the same thing, the first resource by
// name counts; conflicts are those that differ.
func (l *Ledger) Given(uid types.UID, container string) (sum Grant, conflicts []string) {
	sum.Env, sum.Annotations = map[string]string{}, map[string]string{}
	mounts, nodes, cdi := map[string]string{}, map[string]string{}, set{}
	first := func(into map[string]string, kind, key, value string) bool {
		have, taken := into[key]
		if !taken {
			into[key] = value
		} else if have != value {
			conflicts = append(conflicts, fmt.Sprintf("%s %s: %s, and not %s", kind, key, have, value))
		}
		return !taken
	}
	holdings := l.held[uid][container]
	for _, name := range slices.Sorted(maps.Keys(holdings)) {
		grant := holdings[name].grant
		if grant == nil {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(grant.Env)) {
			first(sum.Env, "environment variable", key, grant.Env[key])
		}
		for _, key := range slices.Sorted(maps.Keys(grant.Annotations)) {
			first(sum.Annotations, "annotation", key, grant.Annotations[key])
		}
		for _, m := range grant.Mounts {
			if first(mounts, "mount", m.Container, m.Host) {
				sum.Mounts = append(sum.Mounts, m)
			}
		}
		for _, n := range grant.Nodes {
			if first(nodes, "device", n.Container, n.Host) {
				sum.Nodes = append(sum.Nodes, n)
			}
		}
		for _, device := range grant.CDI {
			if !cdi[device] {
				cdi[device] = true
				sum.CDI = append(sum.CDI, device)
			}
		}
	}
	return sum, conflicts
}

// Held are the devices of a container, by resource.
func (l *Ledger) Held(uid types.UID, container string) map[string][]Device {
	out := map[string][]Device{}
	for name, h := range l.held[uid][container] {
		if h.grant != nil {
			out[name] = slices.Clone(h.devices)
		}
	}
	return out
}

// Allocatable are all healthy devices, held or not, by resource and ID.
func (l *Ledger) Allocatable() map[string][]Device {
	out := map[string][]Device{}
	for name, r := range l.resources {
		for _, id := range l.healthy(name).sorted() {
			out[name] = append(out[name], r.devices[id])
		}
	}
	return out
}

// Health is the health of a container's devices, for its status. That of a device that no plugin
// reports at the moment is unknown.
func (l *Ledger) Health(uid types.UID, container string) []v1.ResourceStatus {
	var out []v1.ResourceStatus
	holdings := l.held[uid][container]
	for _, name := range slices.Sorted(maps.Keys(holdings)) {
		if holdings[name].grant == nil {
			continue
		}
		status := v1.ResourceStatus{Name: v1.ResourceName(name)}
		for _, d := range holdings[name].devices {
			status.Resources = append(status.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(d.ID), Health: l.healthOf(name, d.ID)})
		}
		out = append(out, status)
	}
	return out
}

func (l *Ledger) healthOf(name, id string) v1.ResourceHealthStatus {
	r := l.resources[name]
	if r == nil || !r.listed {
		return v1.ResourceHealthStatusUnknown
	}
	switch d, there := r.devices[id]; {
	case !there:
		return v1.ResourceHealthStatusUnknown
	case d.Healthy:
		return v1.ResourceHealthStatusHealthy
	}
	return v1.ResourceHealthStatusUnhealthy
}

func quantity(n int64) apiresource.Quantity {
	return *apiresource.NewQuantity(n, apiresource.DecimalSI)
}
