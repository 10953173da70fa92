package live

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// startLimit is for etcd and the API server to become ready.
const startLimit = 90 * time.Second

// startAPI starts etcd and the API server and connects to them.
func (b *bench) startAPI(ctx context.Context) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	etcd := "http://127.0.0.1:" + ports[0]
	if err := b.startServer("etcd", "--data-dir", filepath.Join(b.dir, "etcd"), "--log-level", "warn",
		"--listen-client-urls", etcd,
		"--listen-peer-urls", "http://127.0.0.1:"+ports[1], "--quota-backend-bytes", strconv.Itoa(8<<30)); err != nil {
		return err
	}
	token, files, err := b.writeCredentials()
	if err != nil {
		return err
	}
	certificates := filepath.Join(b.dir, "certificates")
	if b.Gang > 0 {
		files = append(files, "--feature-gates", gangGates, "--runtime-config", "scheduling.k8s.io/v1beta1=true")
	}
	if err := b.startServer("kube-apiserver", append(files,
		"--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", ports[2], "--cert-dir", certificates,
		// Loopback is refused as the address to be advertised; nobody asks for this one, which is
		// reserved for documentation.
		"--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none",
		"--service-cluster-ip-range", "10.96.0.0/24", "--authorization-mode", "RBAC",
		// There are no controllers: no service accounts would appear, and nobody would take the
		// taint of a new node away.
		"--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
		// For cleaning up between the rounds.
		"--delete-collection-workers", "16")...); err != nil {
		return err
	}
	return b.connectAPI(ctx, "https://127.0.0.1:"+ports[2], filepath.Join(certificates, "apiserver.crt"), token)
}

// startServer starts a process that runs until the end of the bench.
func (b *bench) startServer(name string, args ...string) error {
	p, err := b.launchProgram(name, args...)
	if err == nil {
		b.servers = append(b.servers, p)
	}
	return err
}

func (b *bench) stopServers() {
	for i := len(b.servers) - 1; i >= 0; i-- {
		_, _ = b.servers[i].Stop()
	}
	b.servers = nil
}

// writeCredentials writes what the API server needs to know its administrator and to sign tokens.
func (b *bench) writeCredentials() (token string, flags []string, err error) {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	token = hex.EncodeToString(secret)
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return "", nil, err
	}
	tokens, keys := filepath.Join(b.dir, "tokens.csv"), filepath.Join(b.dir, "service-accounts.key")
	if err := os.WriteFile(tokens, []byte(token+",bench,bench,system:masters\n"), 0o600); err != nil {
		return "", nil, err
	}
	if err := os.WriteFile(keys, key, 0o600); err != nil {
		return "", nil, err
	}
	return token, []string{"--token-auth-file", tokens, "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", keys, "--service-account-signing-key-file", keys}, nil
}

// connectAPI writes the kubeconfig that the schedulers get, waits until the API server is ready,
// and makes the bench's own client.
func (b *bench) connectAPI(ctx context.Context, server, authority, token string) error {
	b.kubeconfig = filepath.Join(b.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"bench": {Server: server, CertificateAuthority: authority}},
		AuthInfos:      map[string]*api.AuthInfo{"bench": {Token: token}},
		Contexts:       map[string]*api.Context{"bench": {Cluster: "bench", AuthInfo: "bench"}},
		CurrentContext: "bench",
	}, b.kubeconfig); err != nil {
		return err
	}
	return b.pollUntil(ctx, "the API server to be ready", startLimit, func() (bool, error) {
		// The certificate it makes for itself is not there from the beginning.
		config, err := clientcmd.BuildConfigFromFlags("", b.kubeconfig)
		if err != nil {
			return false, nil
		}
		b.client, err = newClient(config)
		if err != nil {
			return false, nil
		}
		status := 0
		b.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&status)
		return status == http.StatusOK, nil
	})
}

func newClient(config *rest.Config) (kubernetes.Interface, error) {
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(config)
}

// pollUntil asks again and again, and ends early where a server has ended or the context has.
func (b *bench) pollUntil(ctx context.Context, what string, limit time.Duration, done func() (bool, error)) error {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := b.serversRun(); err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fmt.Errorf("waited %v for %s", limit, what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b *bench) serversRun() error {
	for _, p := range b.servers {
		select {
		case <-p.Ended:
			return p.Gone()
		default:
		}
	}
	return nil
}

// freePorts returns ports that nobody listens on.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
