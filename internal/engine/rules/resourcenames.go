// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
)

// IsExtendedResource reports whether the name is a resource added to a node by a device plugin or
// an administrator: fully qualified and outside kubernetes.io.
//
//	nvidia.com/gpu           yes
//	example.com/licence      yes
//	hugepages-2Mi            no: without a domain
//	kubernetes.io/batch      no: Kubernetes' own
//	requests.nvidia.com/gpu  no: a quota's name for it
func IsExtendedResource(name v1.ResourceName) bool {
	if isNative(name) || strings.HasPrefix(string(name), v1.DefaultResourceRequestsPrefix) {
		return false
	}
	// A quota counts the resource under this longer name, which must be valid as well.
	return len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// isNative reports whether the name belongs to Kubernetes: it has no domain, or contains
// kubernetes.io. Like upstream it accepts kubernetes.io anywhere in the name.
func isNative(name v1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

// mayOvercommit reports whether requests may stay below limits. A device or a huge page cannot be
// given to two containers, so their request and limit must be equal.
func mayOvercommit(name v1.ResourceName) bool { return isNative(name) && !isHugePages(name) }

// isHugePages reports whether the name is hugepages-SIZE, for any size.
func isHugePages(name v1.ResourceName) bool {
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}

// quotaOf returns NAME for the quota resource requests.NAME, or "" for any other name.
func quotaOf(name v1.ResourceName) v1.ResourceName {
	short, found := strings.CutPrefix(string(name), v1.DefaultResourceRequestsPrefix)
	if !found {
		return ""
	}
	return v1.ResourceName(short)
}

// isDivisible reports whether an amount of huge pages is a whole number of pages. It is false for a
// name with an unreadable size.
func isDivisible(name v1.ResourceName, quantity resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), v1.ResourceHugePagesPrefix))
	if err != nil || size.Sign() <= 0 || size.MilliValue()%1000 != 0 || size.Value() == 0 {
		return false
	}
	return quantity.Value()%size.Value() == 0
}

// containerResources are the resources without a domain that a container may name, apart from huge
// pages.
var containerResources = sets.New(v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage)

// countedResources are measured in whole objects.
var countedResources = sets.New(v1.ResourcePods, v1.ResourceQuotas, v1.ResourceServices, v1.ResourceReplicationControllers,
	v1.ResourceSecrets, v1.ResourceConfigMaps, v1.ResourcePersistentVolumeClaims, v1.ResourceServicesNodePorts,
	v1.ResourceServicesLoadBalancers)

// quotaResources are the resources without a domain that only a quota or a claim may name.
var quotaResources = sets.New(v1.ResourceRequestsCPU, v1.ResourceRequestsMemory, v1.ResourceRequestsEphemeralStorage,
	v1.ResourceLimitsCPU, v1.ResourceLimitsMemory, v1.ResourceLimitsEphemeralStorage, v1.ResourceStorage, v1.ResourceRequestsStorage)
