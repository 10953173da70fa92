// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// This file checks kube-scheduler and kube-controller-manager, as far as their command lines are
// visible: on a managed control plane they do not run as pods. The checks verify that exactly one
// component performs each task.

// UpstreamLease is the Lease of kube-scheduler's leader election. If Berth uses it, one of the two
// schedulers is on standby. If Berth uses another Lease, it must serve other scheduler names.
const UpstreamLease = "kube-system/kube-scheduler"

// evicting lists the controllers replaced by Berth's controller. Two instances of such a controller
// would taint and evict against each other.
var evicting = []string{"node-lifecycle-controller", "taint-eviction-controller", "device-taint-eviction-controller"}

// checkSchedulers checks kube-scheduler: whether it and Berth could bind the same pods, and which
// of its settings Berth would need.
func (j *judge) checkSchedulers() {
	upstream := j.processesNamed("kube-scheduler")
	for _, p := range upstream {
		// Skip images without a version in their tag.
		if image := imageVersion(p.Image); MinorOf(image) >= 0 && MinorOf(j.Version) >= 0 && MinorOf(image) != MinorOf(j.Version) {
			j.addFinding(Note, "kube-scheduler", "", "%s is %s, the API server %s", p.Where, image, j.Version)
		}
		if config := p.flagValue("config"); config != "" {
			j.addFinding(Note, "kube-scheduler",
				"give Berth the same file: berth scheduler --config takes it as it is, --write-config-to - shows the result",
				"%s has a configuration, %s", p.Where, config)
		}
		// Clusters upgraded for years may still have these flags.
		for _, old := range []string{"policy-config-file", "policy-configmap", "algorithm-provider"} {
			if p.flagValue(old) != "" {
				j.addFinding(Note, "kube-scheduler", "berth scheduler --"+old+" ... --write-config-to - translates it",
					"%s has --%s, which kube-scheduler has removed", p.Where, old)
			}
		}
		// A Lease coordinates only processes that use it.
		if p.flagValue("leader-elect") == "false" && j.SchedulerLease == UpstreamLease {
			j.addFinding(Problem, "kube-scheduler", "enable its leader election, or stop it before Berth starts",
				"%s runs without leader election: it and Berth would both schedule", p.Where)
		}
		// Berth's relevant gates have the same names.
		if gates := p.flagValue("feature-gates"); gates != "" {
			j.addFinding(Note, "kube-scheduler", "compare with docs/tasks/scheduler.md", "%s has --feature-gates=%s", p.Where, gates)
		}
	}

	holder, replaces := j.Leases[UpstreamLease], j.SchedulerLease == UpstreamLease
	switch {
	// checkStopped reports this case. The pods may still be visible.
	case slices.ContainsFunc(j.Stopped, func(s config.Stopped) bool { return s.Lease == UpstreamLease }):
	// The holder of the Lease schedules; the pods of kube-scheduler may be invisible.
	case j.BerthLeads && len(upstream) == 0:
		j.addFinding(OK, "kube-scheduler", "", "none runs; Berth leads by its Lease, as %s", holder)
	case j.BerthLeads:
		j.addFinding(Note, "kube-scheduler", "", "is on standby for Berth, which leads by its Lease, as %s", holder)
	case replaces && holder != "":
		j.addFinding(Warning, "kube-scheduler", "for Berth to lead, stop kube-scheduler: docs/tasks/replace-kube-scheduler.md",
			"still leads, as %s, and Berth is on standby for it", holder)
	case len(upstream) == 0 && holder == "":
		j.addFinding(Note, "kube-scheduler", "", "no pod and no Lease of it was found")
	case len(upstream) == 0:
		j.addFinding(Note, "kube-scheduler", "on a managed control plane Berth runs next to it: "+
			"docs/tasks/managed-clusters.md", "its Lease is held by %s, and no pod of it was found", holder)
	default:
		j.addFinding(OK, "kube-scheduler", "", "runs as %s",
			joinNames(answer.Mapped(upstream, func(p Process) string { return p.Where })))
	}

	// Two schedulers that serve the same name with different Leases both bind the pods of that
	// name, each by its own view of the cluster.
	if slices.Contains(j.SchedulerNames, "default-scheduler") && j.SchedulerLease != UpstreamLease && (len(upstream) > 0 || holder != "") {
		j.addFinding(Problem, "kube-scheduler", "have Berth use the Lease kube-system/kube-scheduler, or serve another name",
			"Berth serves default-scheduler with a Lease of its own: it and kube-scheduler would bind the same pods")
	}
}

// checkStopped reports stopped schedulers. A scheduler without pods of its names may have been
// removed.
func (j *judge) checkStopped() {
	for i := range j.Stopped {
		s, pods, waiting := &j.Stopped[i], 0, 0
		for _, name := range s.Names {
			pods, waiting = pods+j.Pods[name].All, waiting+j.Pods[name].Waiting
		}
		namespace, name, _ := strings.Cut(s.Lease, "/")
		if pods == 0 && !slices.Contains(s.Names, v1.DefaultSchedulerName) {
			j.addFinding(Note, "scheduler", "if it was removed, kubectl delete lease -n "+namespace+" "+name, "%s", s)
			continue
		}
		j.addFinding(Problem, "scheduler", "start it: until then no pod of these names is placed", "%s (%s pending)", s,
			answer.Count(waiting, "pod"))
	}
}

// checkControllers checks kube-controller-manager: exactly one of it and Berth's controller must
// perform node health and evictions.
func (j *judge) checkControllers() {
	managers := j.processesNamed("kube-controller-manager")
	// Test for the ServiceAccount only, regardless of running pods.
	ours := j.isInstalled(deploy.Controller)
	for _, p := range managers {
		var on, off []string
		for _, controller := range evicting {
			if runsController(p.flagList("controllers"), controller) {
				on = append(on, controller)
			} else {
				off = append(off, controller)
			}
		}
		switch {
		case len(on) > 0 && ours:
			j.addFinding(Problem, "kube-controller-manager", "add to its flags: --controllers=*,-"+
				strings.Join(evicting, ",-"), "%s runs %s, and so does Berth's controller", p.Where, strings.Join(on, " and "))
		case len(off) > 0 && !ours:
			j.addFinding(Problem, "kube-controller-manager", "install Berth's controller, or remove --controllers",
				"%s runs without %s, and no other component replaces them", p.Where, strings.Join(off, " and "))
		case ours:
			j.addFinding(OK, "kube-controller-manager", "", "%s leaves nodes and evictions to Berth", p.Where)
		default:
			j.addFinding(OK, "kube-controller-manager", "", "%s handles nodes and evictions", p.Where)
		}
		var keep []string
		for _, flag := range []string{"node-monitor-period", "node-monitor-grace-period", "node-startup-grace-period", "node-eviction-rate",
			"secondary-node-eviction-rate", "unhealthy-zone-threshold", "large-cluster-size-threshold"} {
			if value := p.flagValue(flag); value != "" {
				keep = append(keep, "--"+flag+"="+value)
			}
		}
		// Berth's controller has these flags under the same names; without them its defaults would
		// apply.
		if len(keep) > 0 {
			j.addFinding(Note, "kube-controller-manager", "set them for berth controller, too", "%s has %s", p.Where,
				strings.Join(keep, " "))
		}
	}

	// A managed control plane is not visible.
	if len(managers) == 0 && ours {
		j.addFinding(Warning, "kube-controller-manager", "make sure that "+strings.Join(evicting, ", ")+
			" are off; if they cannot be, uninstall Berth's controller", "it cannot be seen, and Berth's controller is installed")
	}
}

// former maps older names, which --controllers still accepts, to current ones.
var former = map[string]string{"nodelifecycle": "node-lifecycle-controller", "attachdetach": attachDetach}

// attachDetach is the controller that creates and deletes VolumeAttachments.
const attachDetach = "persistentvolume-attach-detach-controller"

// checkVolumes finds CSI drivers without an attacher for their volumes. The scheduler would place
// pods with such volumes, but the pods would not start.
func (j *judge) checkVolumes() {
	managers := j.processesNamed("kube-controller-manager")
	for i := range j.Drivers {
		driver := &j.Drivers[i]
		// Its volumes are mounted without being attached.
		if required := driver.Spec.AttachRequired; required != nil && !*required {
			continue
		}

		for _, p := range managers {
			if !runsController(p.flagList("controllers"), attachDetach) {
				j.addFinding(Problem, "volumes", "enable it with --controllers",
					"%s runs without %s, and no other component attaches volumes of %s", p.Where, attachDetach, driver.Name)
			}
		}

		switch count := j.Attachments[driver.Name]; {
		// The attachments could not be read, so attachers may exist.
		case j.Attachments == nil:
		case len(j.Attachments) == 0 && len(managers) == 0:
			j.addFinding(Note, "volumes", "set attachRequired: false in the CSIDriver if the driver needs no attachment",
				"%s requires attached volumes, and none has been attached yet: berth up has no attach-detach "+
					"controller, and pods with such volumes do not start there", driver.Name)
		case count.Waiting > 0:
			j.addFinding(Warning, "volumes", "see whether the driver's external-attacher runs: kubectl get volumeattachments",
				"%d of %s of %s are waiting to be attached: their pods do not start",
				count.Waiting, answer.Count(count.All, "volume"), driver.Name)
		}
	}
}

// runsController reports whether --controllers of kube-controller-manager enables a controller: the
// first mention of its name counts, with or without "-", and otherwise "*". Without the flag, all
// controllers on by default run.
func runsController(selected []string, controller string) bool {
	for _, name := range selected {
		bare, off := strings.CutPrefix(name, "-")
		if bare == controller || former[bare] == controller {
			return !off
		}
	}
	// Controllers off by default must be named.
	return len(selected) == 0 || slices.Contains(selected, "*")
}

// checkNames finds pods with a schedulerName not served by any scheduler: they are pending forever,
// without an event.
func (j *judge) checkNames() {
	names := slices.Sorted(maps.Keys(j.Pods))
	counts := answer.Mapped(names, func(name string) string { return fmt.Sprintf("%s %d", name, j.Pods[name].All) })
	if len(counts) > 0 {
		j.addFinding(Note, "pods", "", "by scheduler: %s", strings.Join(counts, ", "))
	}
	for _, name := range names {
		waiting := j.Pods[name].Waiting
		// A merely pending pod is not a fault: some scheduler may be about to place it.
		if waiting == 0 || name == "default-scheduler" || slices.Contains(j.SchedulerNames, name) || j.isHeld(name) ||
			slices.ContainsFunc(j.Stopped, func(s config.Stopped) bool { return slices.Contains(s.Names, name) }) {
			continue
		}
		j.addFinding(Warning, "pods", "correct spec.schedulerName, or add a profile of that name",
			"%s pending for scheduler %s, which was not found", answer.Count(waiting, "pod"), name)
	}
}

// checkGroups notes the feature gates required by pod groups if pods name one. The gates are off by
// default in some releases, and without them the API server drops the field that names the group.
func (j *judge) checkGroups() {
	if j.Grouped > 0 {
		j.addFinding(Note, "pod groups", "set the gates on all components, or on none",
			"%s in pod groups: placed together only if berth scheduler, the API server and the workload controllers "+
				"have --feature-gates=%s=true", answer.Count(j.Grouped, "pod"), groups.GenericWorkload)
	}
}

// isHeld reports whether a scheduler of this name holds a Lease: schedulers usually name their
// Lease after themselves.
func (j *judge) isHeld(name string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(j.Leases)), func(lease string) bool { return strings.HasSuffix(lease, "/"+name) })
}

// processesNamed lists the visible processes of a program.
func (j *judge) processesNamed(name string) []Process {
	return slices.DeleteFunc(slices.Clone(j.Processes), func(p Process) bool { return p.Name != name })
}

// imageVersion returns the tag of an image, without its digest. For an image without a tag, the
// result is not a version.
func imageVersion(image string) string {
	// The digest also has a colon.
	image, _, _ = strings.Cut(image, "@")
	return image[strings.LastIndexByte(image, ':')+1:]
}
