// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package patch

// PluginsVersion is the version of sigs.k8s.io/scheduler-plugins. Only the parts listed in Plugins
// are copied: the tested plugins with their tests. The module requires Kubernetes v1.34, and its
// go.mod also requires the dependencies of all its other plugins.
const PluginsVersion = "v0.34.7"

var Plugins = Module{
	parts: []part{
		{"apis", "apis"}, {"manifests", "manifests"}, {"test/util", "test/util"}, {"pkg/util", "pkg/util"},
		{"pkg/coscheduling", "pkg/coscheduling"}, {"pkg/capacityscheduling", "pkg/capacityscheduling"},
		{"pkg/noderesourcetopology", "pkg/noderesourcetopology"},

		{pluginTests + "coscheduling_test.go", pluginTests + "coscheduling/coscheduling_test.go"},
		{pluginTests + "main_test.go", pluginTests + "coscheduling/main_test.go"},
		{pluginTests + "utils.go", pluginTests + "coscheduling/utils.go"},

		{pluginTests + "capacity_scheduling_test.go", pluginTests + "capacityscheduling/capacity_scheduling_test.go"},
		{pluginTests + "main_test.go", pluginTests + "capacityscheduling/main_test.go"},
		{pluginTests + "utils.go", pluginTests + "capacityscheduling/utils.go"},

		{pluginTests + "noderesourcetopology_test.go", pluginTests + "noderesourcetopology/noderesourcetopology_test.go"},
		{pluginTests + "noderesourcetopology_cache_test.go", pluginTests + "noderesourcetopology/noderesourcetopology_cache_test.go"},
		{pluginTests + "nrtutils.go", pluginTests + "noderesourcetopology/nrtutils.go"},
		{pluginTests + "main_test.go", pluginTests + "noderesourcetopology/main_test.go"},
		{pluginTests + "utils.go", pluginTests + "noderesourcetopology/utils.go"},
	},
	edits: []edit{
		{everywhere: true, replace: true, at: "\t\"k8s.io/kubernetes/pkg/scheduler/framework\"\n",
			text: "\t\"sigs.k8s.io/scheduler-plugins/pkg/framework\"\n"},
		{everywhere: true, at: "func syncInformerFactory(testCtx *testContext) {\n",
			text: "\ttestCtx.Scheduler.FollowInPlace(testCtx.Ctx)\n"},
		// The folder contains symbolic links, which modules cannot contain.
		{everywhere: true, replace: true, at: "filepath.Join(\"..\", \"..\", \"manifests\", \"crds\"),\n",
			text: "filepath.Join(\"..\", \"..\", \"..\", \"manifests\", \"coscheduling\"),\n" +
				"filepath.Join(\"..\", \"..\", \"..\", \"manifests\", \"capacityscheduling\"),\n" +
				"filepath.Join(\"..\", \"..\", \"..\", \"manifests\", \"noderesourcetopology\"),\n"},

		{file: capacity, replace: true, at: "framework.NodeToStatusMap", text: "framework.NodeToStatusReader"},
		// Since v1.35, the setting for asynchronous preemption is an argument of the executor.
		{file: capacity, replace: true, at: "\t\tfalse, // enableAsyncPreemption\n",
			text: "\t\tpreemption.NewExecutor(c.fh, feature.Features{}),\n"},
		{file: capacity, at: "import (\n", text: "\t\"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature\"\n\t\"slices\"\n"},
		// The removal of a pod in this loop leaves a nil entry in the slice that the loop iterates
		// over.
		{file: capacity, replace: true, at: "range nodeInfo.GetPods() {\n\t\t\teqInfo, withEQ := elasticQuotaInfos",
			text: "range slices.Clone(nodeInfo.GetPods()) {\n\t\t\teqInfo, withEQ := elasticQuotaInfos"},
		{file: capacity, replace: true, at: "range nodeInfo.GetPods() {\n\t\t\t_, withEQ := elasticQuotaInfos",
			text: "range slices.Clone(nodeInfo.GetPods()) {\n\t\t\t_, withEQ := elasticQuotaInfos"},
	},
	added: map[string]string{
		"go.mod": `module sigs.k8s.io/scheduler-plugins

go 1.26.0

require (
	github.com/OneOfOne/xxhash v1.2.8
	github.com/diktyo-io/appgroup-api v1.0.1-alpha
	github.com/diktyo-io/networktopology-api v1.0.1-alpha
	github.com/k8stopologyawareschedwg/noderesourcetopology-api v0.1.2
	github.com/k8stopologyawareschedwg/podfingerprint v0.2.2
	github.com/patrickmn/go-cache v2.1.0+incompatible
	gomodules.xyz/jsonpatch/v2 v2.4.0
	gonum.org/v1/gonum v0.17.0
	sigs.k8s.io/controller-runtime v0.24.1
)
`,
		pluginTests + "coscheduling/inplace.go":         importInPlace,
		pluginTests + "capacityscheduling/inplace.go":   importInPlace,
		pluginTests + "noderesourcetopology/inplace.go": importInPlace,
		// Upstream's file also contains fakes for unit tests. Only this function is needed.
		"test/util/fake.go": `package util

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	"sigs.k8s.io/scheduler-plugins/pkg/util"
)

func NewClientOrDie(ctx context.Context, config *rest.Config) client.Client {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		panic(err)
	}
	c, _, err := util.NewClientWithCachedReader(ctx, config, scheme)
	if err != nil {
		panic(err)
	}
	return c
}
`,
		"pkg/framework/framework.go": `// Package framework has the names that plugins for Kubernetes v1.34 know in
// k8s.io/kubernetes/pkg/scheduler/framework. Most have moved since.
package framework

import (
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

type (
	EnqueueExtensions   = fwk.EnqueueExtensions
	FilterPlugin        = fwk.FilterPlugin
	Framework           = framework.Framework
	Handle              = fwk.Handle
	NodeToStatusReader  = fwk.NodeToStatusReader
	PermitPlugin        = fwk.PermitPlugin
	Plugin              = fwk.Plugin
	PodInfo             = framework.PodInfo
	PodsToActivate      = framework.PodsToActivate
	PostBindPlugin      = fwk.PostBindPlugin
	PostFilterPlugin    = fwk.PostFilterPlugin
	PostFilterResult    = fwk.PostFilterResult
	PreFilterExtensions = fwk.PreFilterExtensions
	PreFilterPlugin     = fwk.PreFilterPlugin
	PreFilterResult     = fwk.PreFilterResult
	QueueSortPlugin     = fwk.QueueSortPlugin
	ReservePlugin       = fwk.ReservePlugin
	Resource            = framework.Resource
	ScoreExtensions     = fwk.ScoreExtensions
	ScorePlugin         = fwk.ScorePlugin
	SharedLister        = fwk.SharedLister
	WaitingPod          = fwk.WaitingPod
)

const (
	MaxNodeScore = fwk.MaxNodeScore
	MinNodeScore = fwk.MinNodeScore
)

var (
	GetPodKey         = framework.GetPodKey
	NewPodInfo        = framework.NewPodInfo
	NewResource       = framework.NewResource
	PodsToActivateKey = framework.PodsToActivateKey
)
`,
	},
}

const (
	pluginTests   = "test/integration/"
	capacity      = "pkg/capacityscheduling/capacity_scheduling.go"
	importInPlace = "package integration\n\nimport _ \"github.com/berth-k8s/berth/test/inplace\"\n"
)
