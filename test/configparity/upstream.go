// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package configparity

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/profile"
)

func init() { metrics.Register() }

// Profile is the compiled configuration of one scheduler name, in a form common to both sides.
type Profile struct {
	// At lists the plugins at each extension point, by the point's name in files.
	At map[string][]string
	// Weights holds the weights of the score plugins.
	Weights map[string]int64
	// Args holds the arguments of each plugin that has any, including defaults, as JSON of the v1
	// API.
	Args map[string]string
}

// readUpstream creates a scheduler from a file, as kube-scheduler does when it starts, and returns
// its profiles.
func readUpstream(ctx context.Context, file string) (map[string]Profile, error) {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	defer stop()
	spec, err := options.LoadConfigFromFile(klog.FromContext(ctx), file)
	if err != nil {
		return nil, err
	}
	if err := validation.ValidateKubeSchedulerConfiguration(spec); err != nil {
		return nil, err
	}
	client := clientset.NewClientset()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	defer broadcaster.Shutdown()
	made, err := scheduler.New(ctx, client, scheduler.NewInformerFactory(client, 0, nil), nil, profile.NewRecorderFactory(broadcaster),
		scheduler.WithProfiles(spec.Profiles...), scheduler.WithExtenders(spec.Extenders...), scheduler.WithParallelism(spec.Parallelism),
		scheduler.WithFrameworkOutOfTreeRegistry(outsideUpstream()))
	if err != nil {
		return nil, err
	}
	profiles := map[string]Profile{}
	for i := range spec.Profiles { // buildExtenders has changed the arguments in place
		p := &spec.Profiles[i]
		args, err := upstreamArgs(p.PluginConfig)
		if err != nil {
			return nil, err
		}
		at, weights := upstreamPlugins(made.Profiles[p.SchedulerName].ListPlugins())
		profiles[p.SchedulerName] = Profile{at, weights, args}
	}
	return profiles, nil
}

func upstreamPlugins(p *config.Plugins) (map[string][]string, map[string]int64) {
	at, weights := map[string][]string{}, map[string]int64{}
	for point, set := range map[string]config.PluginSet{
		"preEnqueue": p.PreEnqueue, "queueSort": p.QueueSort, "preFilter": p.PreFilter, "filter": p.Filter,
		"postFilter": p.PostFilter, "podGroupPostFilter": p.PodGroupPostFilter,
		"preScore": p.PreScore, "score": p.Score, "reserve": p.Reserve, "permit": p.Permit, "preBind": p.PreBind, "bind": p.Bind,
		"postBind": p.PostBind, "placementGenerate": p.PlacementGenerate, "placementScore": p.PlacementScore,
	} {
		for _, plugin := range set.Enabled {
			at[point] = append(at[point], plugin.Name)
			if point == "score" {
				weights[plugin.Name] = int64(plugin.Weight)
			}
		}
	}
	return at, weights
}

// upstreamArgs converts the arguments back to v1, without kind and apiVersion.
func upstreamArgs(configs []config.PluginConfig) (map[string]string, error) {
	args := map[string]string{}
	for _, c := range configs {
		if _, unknown := c.Args.(*runtime.Unknown); unknown || c.Args == nil {
			continue
		}
		object, err := configscheme.Scheme.ConvertToVersion(c.Args, configV1)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		if args[c.Name], err = argsJSON(object); err != nil {
			return nil, err
		}
	}
	return args, nil
}

func argsJSON(object any) (string, error) {
	encoded, err := json.Marshal(object)
	if err != nil {
		return "", err
	}
	var tree map[string]any
	if err := json.Unmarshal(encoded, &tree); err != nil {
		return "", err
	}
	delete(tree, "kind")
	delete(tree, "apiVersion")
	sorted, err := json.Marshal(tree)
	return string(sorted), err
}

// outsideUpstream registers the out-of-tree plugins named in the files. They do nothing.
func outsideUpstream() frameworkruntime.Registry {
	made := func(p fwk.Plugin) frameworkruntime.PluginFactory {
		return func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return p, nil }
	}
	return frameworkruntime.Registry{
		"MyPlugin":        made(everywhere{idle{"MyPlugin"}}),
		"MyCustomPluginA": made(scoring{idle{"MyCustomPluginA"}}),
		"MyCustomPluginB": made(scoring{idle{"MyCustomPluginB"}}),
		"MyQueueSort":     made(sorting{idle{"MyQueueSort"}}),
	}
}
