// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"slices"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
)

// answering is the name of the controller that responds to EvictionRequests, both in
// kube-controller-manager and in Berth's controller.
const answering = "evictionrequest-controller"

// AnswersRequests reports whether Berth's controller is configured to respond to EvictionRequests.
func (f *Facts) AnswersRequests() bool { return f.answererOf(Controller) != "" }

// answererOf returns the location of a process of the program that is configured to respond to
// EvictionRequests, or "".
func (f *Facts) answererOf(program string) (where string) {
	for i := range f.Processes {
		if p := &f.Processes[i]; p.Name == program && slices.Contains(p.flagList("controllers"), answering) {
			where = p.Where
		}
	}
	return where
}

// checkRequests checks that exactly one process responds to EvictionRequests. The controller runs
// only if --controllers names it. If no process names it and the API server does not serve
// EvictionRequests, nothing is reported.
func (j *judge) checkRequests() {
	// At most one of them should be set.
	ours, theirs := j.answererOf(Controller), j.answererOf("kube-controller-manager")
	switch waiting := j.Requests.Waiting; {
	case ours != "" && theirs != "":
		j.addFinding(Problem, "eviction requests", "remove "+answering+" from --controllers of one of them",
			"%s and %s both answer EvictionRequests", ours, theirs)

	case j.ServesRequests && waiting > 0 && ours+theirs == "":
		j.addFinding(Problem, "eviction requests", "have Berth's controller answer them: --controllers=*,"+answering,
			"no component has processed %d of %s for a minute", waiting, answer.Count(j.Requests.All, "EvictionRequest"))
	case j.ServesRequests && waiting > 0:
		j.addFinding(Problem, "eviction requests", j.orStart(deploy.Controller, "check that it runs and leads, and its log"),
			"%s has not processed %d of %s for a minute", ours+theirs, waiting, answer.Count(j.Requests.All, "EvictionRequest"))

	case j.ServesRequests && ours+theirs == "":
		j.addFinding(Note, "eviction requests", "docs/concepts/eviction-requests.md describes how to answer them",
			"the API server serves EvictionRequests, and no pod that answers them was found")
	case j.ServesRequests:
		j.addFinding(OK, "eviction requests", "", "%s answers them", ours+theirs)

	case ours+theirs != "":
		j.addFinding(Note, "eviction requests", "start the API server with --feature-gates=EvictionRequestAPI=true "+
			"--runtime-config=lifecycle.k8s.io/v1alpha1=true (v1.37), or remove "+answering+" from --controllers",
			"%s waits to answer EvictionRequests, which the API server does not serve", ours+theirs)
	}
}
