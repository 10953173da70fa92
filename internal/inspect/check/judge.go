// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Level is the severity of a finding. With --fail-on, the exit status of berth check depends on it;
// see Answer.Held.
type Level string

const (
	OK      Level = "ok"      // no action required
	Note    Level = "note"    // worth knowing
	Warning Level = "warning" // works, but requires action
	Problem Level = "problem" // does not work
)

// Finding is one line of the result: the observation and, in Action, the remedy.
type Finding struct {
	Level Level `json:"level"`
	// Topic is the subject, in a word or two: version, nodes, webhooks.
	Topic   string `json:"topic"`
	Message string `json:"message"`
	// Action is the remedy, if any.
	Action string `json:"action,omitempty"`
}

// The minor versions of Kubernetes 1 supported by Berth: its libraries' minor and the two before.
var (
	newestMinor = MinorOf(rules.Kubernetes)
	oldestMinor = newestMinor - 2
)

// Judge returns the findings about a cluster, in a fixed order. It makes no requests. It skips
// facts that could not be read, and lists them in findings.
func Judge(f *Facts) []Finding {
	j := &judge{Facts: f}
	for _, look := range []func(){
		j.checkVersion, j.checkNodes, j.checkPermissions, j.checkOwnPods, j.checkSchedulers, j.checkStopped,
		j.checkControllers, j.checkVolumes,
		j.checkNames, j.checkGroups, j.checkWebhooks,
		j.ownWebhook, j.checkRequests, j.checkBudgets, j.checkPriorities, j.checkNeighbours, j.reportUnread,
	} {
		look()
	}
	return j.findings
}

// judge collects the findings about one cluster.
type judge struct {
	*Facts
	findings []Finding
}

// addFinding adds a finding. action may be empty; message and args are as for fmt.Sprintf.
func (j *judge) addFinding(level Level, topic, action, message string, args ...any) {
	j.findings = append(j.findings, Finding{level, topic, fmt.Sprintf(message, args...), action})
}

// isInstalled reports whether a component of Berth is installed.
func (j *judge) isInstalled(part deploy.Part) bool { return slices.Contains(j.Installed, part) }

// MinorOf returns the minor version: 36 for v1.36.3-gke.1. It returns a negative number if the
// major version is not 1, as in unreleased builds (v0.0.0-master), or if there is no minor version.
func MinorOf(text string) int {
	v, err := version.ParseGeneric(text)
	if err != nil || v.Major() != 1 {
		return -1
	}
	return int(v.Minor())
}

// checkVersion compares the API server's version with the versions supported by Berth. A newer API
// server may have kinds and rules unknown to this version of Berth.
func (j *judge) checkVersion() {
	switch minor := MinorOf(j.Version); {
	// Unreleased builds and some distributions use other version schemes.
	case minor < 0:
		j.addFinding(Warning, "version", "compare it with the table in docs/tasks/install.md",
			"the API server's version %q has no minor version", j.Version)
	case minor < oldestMinor:
		j.addFinding(Problem, "version", fmt.Sprintf("upgrade to v1.%d or later first", oldestMinor),
			"the API server is %s; Berth follows v1.%d and is made for v1.%d to v1.%d", j.Version, newestMinor, oldestMinor, newestMinor)
	case minor > newestMinor:
		j.addFinding(Warning, "version", "look for a newer Berth; until then only as a second scheduler",
			"the API server is %s, newer than v1.%d, which Berth follows", j.Version, newestMinor)
	default:
		j.addFinding(OK, "version", "", "the API server is %s", j.Version)
	}
	// An empty list means that the groups could not be read.
	if !slices.Contains(j.Groups, "resource.k8s.io") && len(j.Groups) > 0 {
		j.addFinding(Note, "version", "", "the API has no resource.k8s.io: pods cannot claim devices here")
	}
}

// checkNodes finds kubelets outside of the version skew supported by Kubernetes, and unschedulable
// nodes.
func (j *judge) checkNodes() {
	var old, away, uninitialized, left []string
	level, action := Note, ""
	server := MinorOf(j.Version)
	for i := range j.Nodes {
		node := &j.Nodes[i]
		// Kubernetes supports kubelets up to three minors older than the API server, but no newer
		// ones.
		if kubelet := MinorOf(node.Status.NodeInfo.KubeletVersion); kubelet >= 0 && server >= 0 &&
			(kubelet > server || kubelet < server-3) {
			old = append(old, node.Name+" "+node.Status.NodeInfo.KubeletVersion)
		}
		if disruption.ReadinessOf(node) != v1.ConditionTrue {
			away = append(away, node.Name)
		}
		if outdated := nodehealth.Outdated(node); len(outdated) > 0 {
			left = append(left, node.Name+" "+outdated[0].Key)
			if j.AsOf.Sub(changedAt(node)) > untaintedWithin {
				level, action = Problem, "no controller removes them: run kube-controller-manager's node-lifecycle-controller or Berth's controller"
			}
		}
		if slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == uninitializedTaint }) {
			uninitialized = append(uninitialized, node.Name)
		}
	}

	if len(old) > 0 {
		j.addFinding(Warning, "nodes", "bring the kubelets to at most three minors behind the API server",
			"version skew that Kubernetes does not support: %s", joinNames(old))
	}

	if len(uninitialized) > 0 {
		j.addFinding(Note, "nodes", "see whether the cloud controller manager runs",
			"not initialized, and so without pods: %s", joinNames(uninitialized))
	}

	if len(left) > 0 {
		j.addFinding(level, "nodes", action, "%d of %d are Ready, and keep taints of another state: %s", len(left), len(j.Nodes), joinNames(left))
	}

	if len(away) > 0 {
		j.addFinding(Note, "nodes", "", "%d of %d are not ready: %s", len(away), len(j.Nodes), joinNames(away))
	} else if len(left) == 0 && len(j.Nodes) > 0 {
		j.addFinding(OK, "nodes", "", "all %d are ready", len(j.Nodes))
	}
}

// uninitializedTaint marks a node until the cloud controller manager has initialized it.
const uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"

// untaintedWithin bounds the time until node health has adapted a node's taints to its state: it
// examines nodes every five seconds.
const untaintedWithin = 15 * time.Second

// changedAt returns the time of the node's last change of state.
func changedAt(node *v1.Node) (at time.Time) {
	for _, c := range node.Status.Conditions {
		at = pacing.Later(at, c.LastTransitionTime.Time)
	}
	return at
}

// checkPermissions reports the permissions lacking in the installed components. If the caller may
// not query another account's permissions, it suggests a command to run with that account's token.
func (j *judge) checkPermissions() {
	for _, part := range j.Installed {
		denied, asked := j.Denied[part]
		switch {
		// Querying another account requires a separate permission.
		case !asked:
			j.addFinding(Note, "permissions", fmt.Sprintf("check with that account's token: berth check --for %s", part),
				"berth-%s: its permissions could not be checked", part)
		case len(denied) > 0:
			j.addFinding(Problem, "permissions", "apply the roles in the manifests again", "berth-%s may not: %s", part, joinNames(denied))
		default:
			j.addFinding(OK, "permissions", "", "berth-%s may do all that it needs", part)
		}
	}
}

// crashed is the waiting reason of a container that has run before, and therefore has a log.
const crashed = "CrashLoopBackOff"

// checkOwnPods reports Berth's containers that cannot start.
func (j *judge) checkOwnPods() {
	for _, f := range j.Failing {
		namespace, pod, _ := strings.Cut(f.Where, "/")
		action := fmt.Sprintf("kubectl -n %s describe pod %s shows why; it has no log", namespace, pod)
		if f.Reason == crashed {
			action = fmt.Sprintf("kubectl -n %s logs --previous %s", namespace, pod)
		}
		j.addFinding(Problem, "berth-"+string(f.Part), action, "%s does not start: %s of the image %s", f.Where, f.Reason, f.Image)
	}
}

// orStart returns the action or, if the containers of the component have no log, the advice to
// start the component.
func (j *judge) orStart(part deploy.Part, action string) string {
	if slices.ContainsFunc(j.Failing, func(f Failing) bool { return f.Part == part && f.Reason != crashed }) {
		return "fix the start of its pods first"
	}
	return action
}

// joinNames joins at most ten names, and counts the rest.
func joinNames(names []string) string {
	const most = 10
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// RightsOf returns the findings about the caller's own permissions: denied lists the component's
// permissions that the caller lacks.
func RightsOf(part string, denied []string) []Finding {
	if len(denied) == 0 {
		return []Finding{{OK, "permissions", "you may do all that " + part + " needs", ""}}
	}
	return answer.Mapped(denied, func(right string) Finding { return Finding{Problem, "permissions", "you may not " + right, ""} })
}
