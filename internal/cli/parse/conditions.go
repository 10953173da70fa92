// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/internal/usage"
)

// NodesAndConditions separates node names from conditions, given as TYPE=STATUS or TYPE-. TYPE-, or
// the status of a healthy node, reverts a condition.
func NodesAndConditions(args []string) ([]string, simkubelet.Conditions, error) {
	var nodes []string
	change := simkubelet.Conditions{}
	for _, arg := range args {
		text, remove := strings.CutSuffix(arg, "-")
		switch {
		case remove:
			text += "=False"
		case !strings.Contains(arg, "="):
			nodes = append(nodes, arg)
			continue
		}
		one, err := simkubelet.ParseConditions(text)
		if err != nil {
			return nil, nil, usage.Errorf("%w", err)
		}
		for kind, status := range one {
			healthy := v1.ConditionFalse
			if kind == v1.NodeReady {
				healthy = v1.ConditionTrue
			}
			if remove || status == healthy {
				status = ""
			}
			change[kind] = status
		}
	}

	if len(change) == 0 {
		return nil, nil, usage.Errorf("name a condition, such as MemoryPressure=True")
	}
	return nodes, change, nil
}
