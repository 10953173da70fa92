// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/keyutil"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kcmoptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	kcmconfig "k8s.io/kubernetes/pkg/controller/apis/config"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	gcconfig "k8s.io/kubernetes/pkg/controller/garbagecollector/config"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// DefaultControllers returns the upstream controllers that run unless Options.Controllers selects
// otherwise. It omits the controllers replaced by Berth (node-lifecycle, taint-eviction,
// device-taint-eviction) and the controllers that are useless without a cloud or real disks
// (node-ipam, routes, load balancers, attach-detach). Each call returns a new list.
func DefaultControllers() []string {
	return []string{
		names.DeploymentController, names.ReplicaSetController, names.ReplicationControllerController,
		names.StatefulSetController, names.DaemonSetController, names.JobController, names.CronJobController,
		names.TTLAfterFinishedController, names.PodGarbageCollectorController, names.GarbageCollectorController,
		names.NamespaceController, names.ServiceAccountController, names.ServiceAccountTokenController,
		names.RootCACertificatePublisherController, names.ClusterRoleAggregationController,
		names.EndpointsController, names.EndpointSliceController, names.EndpointSliceMirroringController,
		names.ServiceCIDRController, names.DisruptionController, names.ResourceQuotaController,
		names.PersistentVolumeBinderController, names.PersistentVolumeProtectionController,
		names.PersistentVolumeClaimProtectionController, names.EphemeralVolumeController,
		names.ResourceClaimController, names.VolumeAttributesClassProtectionController,
		names.PodGroupProtectionController, names.ValidatingAdmissionPolicyStatusController,
		names.CertificateSigningRequestApprovingController, names.CertificateSigningRequestSigningController,
		names.CertificateSigningRequestCleanerController, names.TokenCleanerController,
	}
}

// knownControllers returns the names accepted by --controllers. They include the token controller,
// for which startControllers does not use upstream's descriptor.
func knownControllers() sets.Set[string] {
	return sets.New(app.KnownControllers()...).Insert(names.ServiceAccountTokenController)
}

// selectControllers parses a list like kube-controller-manager's --controllers. An excluded name
// stays excluded regardless of its position in the list.
//
//	*, -job-controller, node-ipam-controller   the default controllers without job, with node-ipam
func selectControllers(list []string) sets.Set[string] {
	selected := sets.New[string]()
	for _, name := range list {
		if name == "*" {
			selected.Insert(DefaultControllers()...)
		}
	}
	for _, name := range list {
		if left, out := strings.CutPrefix(name, "-"); out {
			selected.Delete(left)
		} else if name != "*" {
			selected.Insert(name)
		}
	}
	return selected
}

// controllersStopLimit bounds the controllers' shutdown. After the next start, the controllers
// finish their work, because they list all objects again.
const controllersStopLimit = 2 * time.Second

// controllers runs upstream's controllers, assembled as in kube-controller-manager but without
// leader election and without a server, and restartable within a process.
type controllers struct {
	built   []app.Controller
	context app.ControllerContext
	done    chan struct{} // closed when all controllers have ended
}

// startControllers builds the selected controllers and runs them until ctx ends. It returns when
// they are built; their caches are filled afterwards. client is the API server's own and has all
// permissions; the controllers do not impersonate service accounts.
func startControllers(ctx context.Context, client *rest.Config, p *pki, selected sets.Set[string]) (*controllers, error) {
	client = rest.AddUserAgent(rest.CopyConfig(client), "kube-controller-manager")
	// Do not limit the client: the API server is in the same process, and workers are few.
	client.QPS, client.Burst = -1, -1
	client.ContentType = "application/vnd.kubernetes.protobuf"
	client.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client.DisableCompression = true
	// Controllers use deprecated APIs such as Endpoints on purpose.
	client.WarningHandler = rest.NoWarnings{}
	// All controllers share the API server's own identity; each has a distinct user agent.
	builder := clientbuilder.SimpleControllerClientBuilder{ClientConfig: client}

	config, err := controllerConfig(p, selected)
	if err != nil {
		return nil, err
	}
	c := &controllers{done: make(chan struct{})}
	if c.context, err = controllerContext(ctx, builder, config); err != nil {
		return nil, err
	}
	descriptors := app.NewControllerDescriptors()
	// The token controller's descriptor works only inside kube-controller-manager; see
	// newTokenController.
	delete(descriptors, names.ServiceAccountTokenController)
	// BuildControllers skips controllers not selected or not served by the API.
	if c.built, err = app.BuildControllers(ctx, c.context, descriptors, nil, noHealthChecks{}); err != nil {
		return nil, err
	}
	if selected.Has(names.ServiceAccountTokenController) {
		tokens, err := newTokenController(ctx, c.context, builder, p)
		if err != nil {
			return nil, err
		}
		c.built = append(c.built, tokens)
	}
	go c.runControllers(ctx)
	return c, nil
}

// runControllers starts the informers and the controllers, and returns when they have ended or
// exceeded controllersStopLimit.
func (c *controllers) runControllers(ctx context.Context) {
	defer close(c.done)
	c.context.InformerFactory.Start(ctx.Done())
	c.context.ObjectOrMetadataInformerFactory.Start(ctx.Done())
	// The garbage collector and quota wait for this before discovering resources.
	close(c.context.InformersStarted)
	if !app.RunControllers(ctx, c.context, c.built, 0, controllersStopLimit) {
		klog.FromContext(ctx).Info("Controllers did not stop in time", "limit", controllersStopLimit)
	}
	c.context.InformerFactory.Shutdown()
}

// controllerConfig returns upstream's defaults with this cluster's keys. The cluster's CA signs
// node certificates.
func controllerConfig(p *pki, selected sets.Set[string]) (kcmconfig.KubeControllerManagerConfiguration, error) {
	config, err := kcmoptions.NewDefaultComponentConfig()
	if err != nil {
		return config, err
	}
	// List the names, without "*": upstream's defaults would be a different list.
	config.Generic.Controllers = selected.UnsortedList()
	config.CSRSigningController.ClusterSigningCertFile = p.pathOf(caCertFile)
	config.CSRSigningController.ClusterSigningKeyFile = p.pathOf(caKeyFile)
	config.CSRSigningController.ClusterSigningDuration.Duration = certificateLife
	// Service account tokens in Secrets include the cluster's CA.
	config.SAController.RootCAFile = p.pathOf(caCertFile)
	config.SAController.ServiceAccountKeyFile = p.pathOf(tokenKeyFile)
	for r := range garbagecollector.DefaultIgnoredResources() {
		config.GarbageCollectorController.GCIgnoredResources = append(config.GarbageCollectorController.GCIgnoredResources,
			gcconfig.GroupResource{Group: r.Group, Resource: r.Resource})
	}
	return config, nil
}

// controllerContext builds the controllers' input: clients, informers, and the resources served by
// the API. It follows CreateControllerContext of kube-controller-manager.
func controllerContext(ctx context.Context, builder clientbuilder.ControllerClientBuilder,
	config kcmconfig.KubeControllerManagerConfiguration) (app.ControllerContext, error) {
	resync := config.Generic.MinResyncPeriod.Duration
	typed, err := kubernetes.NewForConfig(builder.ConfigOrDie("shared-informers"))
	if err != nil {
		return app.ControllerContext{}, err
	}
	// The garbage collector and quota read metadata of any kind.
	partial, err := metadata.NewForConfig(builder.ConfigOrDie("metadata-informers"))
	if err != nil {
		return app.ControllerContext{}, err
	}
	discovered, err := discovery.NewDiscoveryClientForConfig(builder.ConfigOrDie("controller-discovery"))
	if err != nil {
		return app.ControllerContext{}, err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovered))
	// Quota and garbage collection must learn of new CRDs.
	go wait.Until(mapper.Reset, 30*time.Second, ctx.Done())

	shared := informers.NewSharedInformerFactoryWithOptions(typed, resync, informers.WithTransform(withoutManagedFields))
	partials := metadatainformer.NewSharedInformerFactoryWithOptions(partial, resync, metadatainformer.WithTransform(withoutManagedFields))
	c := app.ControllerContext{
		ClientBuilder:                   builder,
		InformerFactory:                 shared,
		ObjectOrMetadataInformerFactory: informerfactory.NewInformerFactory(shared, partials),
		ComponentConfig:                 config,
		RESTMapper:                      mapper,
		InformersStarted:                make(chan struct{}),
		// As upstream, between one and two times the minimum.
		ResyncPeriod:             func() time.Duration { return wait.Jitter(resync, 1) },
		ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("kube-controller-manager"),
	}
	if config.GarbageCollectorController.EnableGarbageCollector {
		ignored := map[schema.GroupResource]struct{}{}
		for _, r := range config.GarbageCollectorController.GCIgnoredResources {
			ignored[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = struct{}{}
		}
		c.GraphBuilder = garbagecollector.NewDependencyGraphBuilder(ctx, partial, mapper, ignored,
			c.ObjectOrMetadataInformerFactory, c.InformersStarted)
	}
	return c, nil
}

// withoutManagedFields removes managed fields, which the controllers do not read and which take
// most of the memory of many objects. It runs before an object enters a cache.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// tokenController fills Secrets of type service-account-token. It starts like the other
// controllers, with upstream's default number of workers.
type tokenController struct {
	*serviceaccountcontroller.TokensController
	workers int
}

func (c *tokenController) Name() string            { return names.ServiceAccountTokenController }
func (c *tokenController) Run(ctx context.Context) { c.TokensController.Run(ctx, c.workers) }

// newTokenController returns the controller that fills Secrets with tokens signed by the cluster's
// token key. Upstream's descriptor reads the keys from kube-controller-manager's configuration.
func newTokenController(ctx context.Context, c app.ControllerContext, builder clientbuilder.ControllerClientBuilder,
	p *pki) (app.Controller, error) {
	key, err := keyutil.PrivateKeyFromFile(p.pathOf(tokenKeyFile))
	if err != nil {
		return nil, err
	}

	// Tokens in Secrets use the legacy issuer, which the API server accepts for them.
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, err
	}

	root, err := os.ReadFile(p.pathOf(caCertFile))
	if err != nil {
		return nil, err
	}

	client, err := builder.Client("tokens-controller")
	if err != nil {
		return nil, err
	}

	tokens, err := serviceaccountcontroller.NewTokensController(klog.FromContext(ctx),
		c.InformerFactory.Core().V1().ServiceAccounts(), c.InformerFactory.Core().V1().Secrets(), client,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: root})
	if err != nil {
		return nil, fmt.Errorf("service account tokens: %w", err)
	}
	return &tokenController{tokens, int(c.ComponentConfig.SAController.ConcurrentSATokenSyncs)}, nil
}

// noHealthChecks discards the controllers' health checks, because no server would publish them.
type noHealthChecks struct{}

func (noHealthChecks) AddHealthChecker(...healthz.HealthChecker) {}
