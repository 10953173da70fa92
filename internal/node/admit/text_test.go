package admit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestCases asks a node about pods. The commands: "node" and "taken" (a pod that it has) with YAML,
// "forget" those taken, "ask" with a pod, under the pressure that its argument names, and "fit"
// with a pod of the API, which is asked of the node alone.
func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var in Input
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "node":
				in = Input{Node: &v1.Node{}}
				read(t, d, in.Node)
			case "forget":
				in.Taken = nil
			case "taken":
				for part := range strings.SplitSeq(d.Input, "---\n") {
					pod := &v1.Pod{}
					if err := yaml.UnmarshalStrict([]byte(part), pod); err != nil {
						d.Fatalf(t, "%v", err)
					}
					in.Taken = append(in.Taken, pod)
				}
			case "ask":
				in.Pod, in.Pressure = &v1.Pod{}, nil
				read(t, d, in.Pod)
				in.AppArmor = false
				for _, a := range d.CmdArgs {
					if a.Key == "apparmor" {
						in.AppArmor = true
						continue
					}
					in.Pressure = append(in.Pressure, v1.NodeConditionType(a.Key))
				}
				return answerText(Ask(in))
			case "fit":
				in.Pod = &v1.Pod{}
				read(t, d, in.Pod)
				return answerText(Answer{Refused: Fit(in.Pod, in.Node, nil)})
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

func answerText(a Answer) string {
	switch {
	case a.Refused != nil:
		return fmt.Sprintf("%s: %s\n", a.Refused.Reason, a.Refused.Message)
	case len(a.Victims) > 0:
		names := make([]string, len(a.Victims))
		for i, v := range a.Victims {
			names[i] = v.Name
		}
		return "after " + strings.Join(names, ", ") + "\n"
	}
	return "taken\n"
}
