// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestCases tests the admission of pods to a node. The commands: "node" and "taken" (a pod already
// there) with YAML, and "fit" with a pod, under the pressure named by its arguments.
func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var node *v1.Node
		var taken []Demand
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			pod := &v1.Pod{}
			switch d.Cmd {
			case "node":
				node, taken = &v1.Node{}, nil
				read(t, d, node)
			case "taken":
				read(t, d, pod)
				taken = append(taken, DemandOf(pod, true))
			case "fit":
				read(t, d, pod)
				var conditions []v1.NodeConditionType
				for _, a := range d.CmdArgs {
					conditions = append(conditions, v1.NodeConditionType(a.Key))
				}
				refused := UnderPressure(pod, conditions)
				if refused == nil {
					refused = Fit(pod, node, taken)
				}
				if refused != nil {
					return fmt.Sprintf("%s: %s\n", refused.Reason, refused.Message)
				}
				return "taken\n"
			}
			return ""
		})
	})
}

func read(t *testing.T, d *datadriven.TestData, into any) {
	if err := yaml.UnmarshalStrict([]byte(d.Input), into); err != nil {
		d.Fatalf(t, "%v", err)
	}
}
