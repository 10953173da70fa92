// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/yaml"
)

// Names of the files that -write creates in a folder.
const (
	podsFile      = "pods.yaml"
	nodePoolsFile = "nodepools.yaml"
	typesFile     = "instance-types.json"
)

// writeWorld writes the inputs to a folder: pods and the NodePool as manifests, and instance types
// in the format of Karpenter's kwok provider.
func writeWorld(dir string, pods []*corev1.Pod, pool *v1.NodePool, types []*cloudprovider.InstanceType) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}

	var manifests bytes.Buffer
	for _, pod := range pods {
		if err := writeManifest(&manifests, pod); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, podsFile), manifests.Bytes(), 0o644); err != nil {
		return err
	}

	manifests.Reset()
	if err := writeManifest(&manifests, pool); err != nil {
		return fmt.Errorf("NodePool %s: %w", pool.Name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, nodePoolsFile), manifests.Bytes(), 0o644); err != nil {
		return err
	}

	catalog, err := json.MarshalIndent(kwokTypes(types), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, typesFile), append(catalog, '\n'), 0o644)
}

// writeManifest writes an object without the fields set by the API server.
func writeManifest(to *bytes.Buffer, object any) error {
	encoded, err := json.Marshal(object)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return err
	}

	delete(fields, "status")
	for _, field := range []string{"uid", "creationTimestamp"} {
		delete(fields["metadata"].(map[string]any), field)
	}

	text, err := yaml.Marshal(fields)
	if err != nil {
		return err
	}
	to.WriteString("---\n")
	to.Write(text)
	return nil
}

// kwokType is an instance type in the file of Karpenter's kwok provider. The file does not contain
// the overhead, because the provider deducts the overhead of the benchmark's types, 100m of CPU and
// 10Mi of memory, from every type.
type kwokType struct {
	Name             string              `json:"name"`
	Offerings        []kwokOffering      `json:"offerings"`
	Architecture     string              `json:"architecture"`
	OperatingSystems []string            `json:"operatingSystems"`
	Resources        corev1.ResourceList `json:"resources"`
}

// kwokOffering is an offering in that file. Its fields are named as in the file.
type kwokOffering struct {
	Price        float64
	Available    bool
	Requirements []corev1.NodeSelectorRequirement
}

func kwokTypes(types []*cloudprovider.InstanceType) []kwokType {
	all := make([]kwokType, len(types))
	for i, from := range types {
		all[i] = kwokType{
			Name:             from.Name,
			Architecture:     from.Requirements.Get(corev1.LabelArchStable).Any(),
			OperatingSystems: slices.Sorted(slices.Values(from.Requirements.Get(corev1.LabelOSStable).Values())),
			Resources:        from.Capacity,
		}
		for _, offering := range from.Offerings {
			all[i].Offerings = append(all[i].Offerings, kwokOffering{
				Price:     offering.Price,
				Available: offering.Available,
				Requirements: []corev1.NodeSelectorRequirement{
					{Key: v1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{offering.CapacityType()}},
					{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{offering.Zone()}},
				},
			})
		}
	}

	return all
}
