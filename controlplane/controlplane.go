// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// KubernetesVersion is the version of the compiled-in API server and controllers.
const KubernetesVersion = rules.Kubernetes

// Run runs a control plane until ctx ends. It reports progress in lines: "etcd ready …", "api
// server ready …", "controllers ready …", and finally "ready kubeconfig=<path> after=<duration>".
//
// It returns nil if ctx ends, and an error if the control plane could not be started or one of its
// components ended by itself. The error suggests a remedy in one line. Run does not restart a
// component within the process. The supervisor starts another process, which continues with the
// state in the data directory.
func Run(ctx context.Context, o Options, progress io.Writer) error {
	c, err := launchPlane(ctx, o, progress)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		c.stop()
		return nil
	// A component that ended by itself may have left other components waiting for it, so bound the
	// shutdown.
	case <-c.broken.Done():
		err := context.Cause(c.broken)
		c.abandonParts()
		return err
	}
}

// abandonLimit bounds the orderly shutdown of the working components after another component
// failed. It equals the limit for a stop by a signal.
const abandonLimit = 4 * time.Second

// abandonParts stops the components, but waits no longer than abandonLimit, because a failed
// component may never end. Components that do not end keep running until the process exits.
func (c *controlPlane) abandonParts() {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.stop()
	}()
	select {
	case <-stopped:
	case <-time.After(abandonLimit):
	}
}

// controlPlane is a running control plane. Its components are the data directory, the log, the
// feature gates, the listener, etcd, the API server and the controllers. They start in this order
// and stop in the reverse order.
type controlPlane struct {
	options Options // with defaults
	began   time.Time
	// Components are nil until started.
	dir     *dataDir
	pki     *pki
	server  string // the API's URL
	etcd    *etcd
	api     *apiServer
	workers *controllers

	broken context.Context // cancelled if a component ends by itself; the cause is its error
	fail   context.CancelCauseFunc

	closers  []func() // undo steps in the order of the start
	left     bool     // the API server could not be stopped and still serves; read by closers
	stopOnce sync.Once
}

// launchPlane starts a control plane and returns when it is ready or has failed.
//
// Two contexts can interrupt the startup: the caller's, and c.broken if a component ends by itself.
// Neither ends the control plane once it is ready; use stop for that.
func launchPlane(ctx context.Context, o Options, progress io.Writer) (_ *controlPlane, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &controlPlane{options: o.withDefaults(), began: time.Now()}
	c.broken, c.fail = context.WithCancelCause(context.Background())
	// Closers run in reverse order, so the first one, which releases the context, runs last.
	c.onStop(func() { c.fail(nil) })
	defer func() {
		if err != nil {
			c.abandonParts() // for example, etcd may never end after failing on a full disk
		}
	}()
	// Errors report the cause of the cancellation: the caller's, or the error of a component.
	starting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// If a component ends by itself, cancel the startup, which would otherwise wait for it.
	defer context.AfterFunc(c.broken, func() { cancel(context.Cause(c.broken)) })()

	log, err := c.openState()
	if err != nil {
		return nil, err
	}
	// Bind before anything else is started: an occupied port is the most common mistake.
	listener, err := listenAPI(c.options.Port, c.dir.pathOf("port"))
	if err != nil {
		return nil, err
	}
	c.onStop(func() {
		if !c.left { // closing the listener of a running server would end the process
			listener.Close()
		}
	})
	c.server = fmt.Sprintf("https://127.0.0.1:%d", portOf(listener))
	if err := c.startEtcdAndAPI(starting, listener, log, progress); err != nil {
		return nil, err
	}
	c.printProgress(progress, "api server ready "+c.server)
	if err := c.startWorkers(starting); err != nil {
		return nil, err
	}
	// Write the bootstrap kubeconfig after the controllers have started, because they approve and
	// sign the nodes' certificate requests.
	if c.options.NodeBootstrap {
		if err := c.writeNodeBootstrap(starting); err != nil {
			return nil, err
		}
	}
	c.printProgress(progress, "controllers ready")
	fmt.Fprintf(progress, "ready kubeconfig=%s after=%s\n", c.kubeconfigPath(), c.age())
	return c, nil
}

// stop ends all components in the reverse order of their start. It is safe for concurrent use;
// later callers wait for the first call to finish.
func (c *controlPlane) stop() {
	c.stopOnce.Do(func() {
		for _, end := range slices.Backward(c.closers) {
			end()
		}
	})
}

// onStop registers a function that undoes a startup step. Call it right after the step.
func (c *controlPlane) onStop(f func()) { c.closers = append(c.closers, f) }

// printProgress prints a line with the time since the start.
func (c *controlPlane) printProgress(progress io.Writer, what string) {
	fmt.Fprintf(progress, "%s (%s)\n", what, c.age())
}

// age returns the time since the start, to the millisecond.
func (c *controlPlane) age() time.Duration { return time.Since(c.began).Round(time.Millisecond) }

// kubeconfigPath returns the path of the administrator's kubeconfig.
func (c *controlPlane) kubeconfigPath() string { return c.dir.pathOf("kubeconfig") }

// openState opens the data directory and the log and claims the process's feature gates. The gates
// are claimed before anything reads them, and the log is opened before the gates, to record their
// messages.
func (c *controlPlane) openState() (log io.Writer, err error) {
	if c.dir, err = openDataDir(c.options.DataDir); err != nil {
		return nil, err
	}
	c.onStop(c.dir.close)
	log = c.options.LogTo

	if log == nil {
		file, err := openLog(c.dir.pathOf("controlplane.log"))
		if err != nil {
			return nil, err
		}
		c.onStop(func() { file.Close() })
		log = file
	}

	c.onStop(sendLogs(log, c.options.Verbosity))
	release, err := claimGates(c.options.FeatureGates)
	if err != nil {
		return nil, err
	}

	c.onStop(release)
	// Open the PKI only under the data directory's lock: two processes must not create different
	// CAs.
	c.pki, err = openPKI(c.dir.pathOf("pki"))
	return log, err
}

// startEtcdAndAPI starts etcd and the API server concurrently: etcd mostly waits for the disk, the
// API server mostly computes. It returns when the API server's /readyz is ok, which includes its
// connection to etcd.
func (c *controlPlane) startEtcdAndAPI(ctx context.Context, listener *net.TCPListener, log io.Writer, progress io.Writer) error {
	c.etcd = newEtcd(c.fail)
	etcdStarted := make(chan error, 1)
	go func() {
		err := c.etcd.startMemberIn(c.dir.pathOf("etcd"), etcdLog(log))
		if err == nil {
			c.printProgress(progress, "etcd ready")
		}
		etcdStarted <- err
	}()
	// Register the undo function before etcd is up, because a startup that fails half-way must be
	// undone as well.
	c.onStop(c.etcd.stop)

	// The server must outlive ctx, which ends with the startup.
	running, end := context.WithCancel(context.Background())
	api, err := c.configureBeside(running, listener, etcdStarted)
	if err == nil {
		c.api = api
		err = c.api.startServer(running)
	}
	if err != nil {
		end()
		return err
	}
	c.onStop(func() {
		// Do not stop a server while its hooks run; see awaitStarted.
		if !c.api.awaitStarted() {
			c.left = true
			return
		}
		end()
		<-c.api.ended
	})
	ended := func() error {
		return fmt.Errorf("api server: ended: %w; see %s", cmp.Or(c.api.err, errEnded), c.dir.pathOf("controlplane.log"))
	}
	go func() {
		<-c.api.ended
		c.fail(ended())
	}()
	if err := c.api.waitReady(ctx); err != nil {
		return c.api.reason(ctx, err, ended)
	}
	return nil
}

// reason returns the reason that the API server is not ready: its own end, or the cancellation of
// the context by another component or the caller. The server is checked first, because its end
// cancels the context only a moment later.
func (a *apiServer) reason(ctx context.Context, err error, ended func() error) error {
	select {
	case <-a.ended:
		return ended()
	default:
		return cmp.Or(context.Cause(ctx), err)
	}
}

// configureBeside configures the API server while etcd starts. If etcd fails, configureBeside
// returns immediately and abandons the configuring goroutine, which may keep trying to reach etcd
// for a while. This is harmless, because the process is about to end.
func (c *controlPlane) configureBeside(ctx context.Context, listener *net.TCPListener, etcdStarted <-chan error) (*apiServer, error) {
	type result struct {
		api *apiServer
		err error
	}
	configured := make(chan result, 1)
	go func() {
		api, err := c.configureAPI(ctx, listener)
		configured <- result{api, err}
	}()

	if err := <-etcdStarted; err != nil {
		return nil, err
	}
	r := <-configured
	if r.err != nil {
		return nil, fmt.Errorf("api server: %w", r.err)
	}
	return r.api, nil
}

// configureAPI writes the API server's input files and configures it. Every start rewrites the
// files, except for the CAs and the administrator's kubeconfig.
func (c *controlPlane) configureAPI(ctx context.Context, listener *net.TCPListener) (*apiServer, error) {
	if err := c.pki.issueCertificates(c.options.ServiceClusterIPRange, c.options.TLSNames); err != nil {
		return nil, err
	}
	if err := c.pki.writeAdminKubeconfig(c.kubeconfigPath(), c.server); err != nil {
		return nil, err
	}
	if err := c.writeComponents(); err != nil {
		return nil, err
	}
	if err := writeAtomically(c.dir.pathOf(authenticationFile), []byte(anonymousHealth), 0o600); err != nil {
		return nil, err
	}
	return configureAPIServer(ctx, c.options, c.dir, c.pki, c.etcd, listener)
}

// startWorkers starts the controllers and waits until pods can be created in the namespace
// "default". Without the default service account the API refuses pods, and a test that creates one
// right after Start would occasionally fail.
func (c *controlPlane) startWorkers(ctx context.Context) (err error) {
	running, end := context.WithCancel(klog.NewContext(context.Background(), klog.Background()))
	// Register the undo function before starting the controllers, so that a failure in between
	// stops the running ones.
	c.onStop(end)
	selected := selectControllers(c.options.Controllers)
	if c.workers, err = startControllers(running, c.api.loopbackConfig(), c.pki, selected); err != nil {
		return fmt.Errorf("controllers: %w", err)
	}

	c.onStop(func() {
		end()
		<-c.workers.done
	})

	// Without the service account controller, the account would never be created.
	if !selected.Has(names.ServiceAccountController) {
		return nil
	}
	if err := c.waitServiceAccount(ctx); err != nil {
		return fmt.Errorf("controllers: no default service account: %w", err)
	}
	return nil
}

// waitServiceAccount waits until the namespace "default" has its service account.
func (c *controlPlane) waitServiceAccount(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.api.loopbackConfig())
	if err != nil {
		return err
	}
	accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	return wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		_, err := accounts.Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// clientConfig returns a client configuration for the given user. The certificate is new, and valid
// for certificateLife.
func (c *controlPlane) clientConfig(user string, groups ...string) (*rest.Config, error) {
	cert, key, err := c.pki.cluster.issueClient(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            c.server,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.pki.cluster.pem, CertData: cert, KeyData: key},
	}, nil
}
