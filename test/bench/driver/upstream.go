// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// StartUpstream starts etcd and an unmodified API server with the given flags, and waits until they
// are ready.
func (r *Run) StartUpstream(ctx context.Context, flags ...string) (*Cluster, error) {
	c := &Cluster{Run: r, Kubeconfig: filepath.Join(r.Dir, "kubeconfig")}
	if err := c.serveUpstream(ctx, flags); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) serveUpstream(ctx context.Context, flags []string) error {
	ports, err := FreePorts(3)
	if err != nil {
		return err
	}
	etcd := "http://127.0.0.1:" + ports[0]
	if err := c.Serve("etcd", "--data-dir", filepath.Join(c.Dir, "etcd"), "--log-level", "warn", "--listen-client-urls", etcd,
		"--listen-peer-urls", "http://127.0.0.1:"+ports[1], "--quota-backend-bytes", strconv.Itoa(8<<30)); err != nil {
		return err
	}

	token, files, err := c.writeCredentials()
	if err != nil {
		return err
	}
	flags = append(append(files, flags...),
		"--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", ports[2], "--cert-dir", filepath.Dir(c.Certificate()),
		// The advertised address must not be a loopback address. This address is reserved for
		// documentation and never used.
		"--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none",
		"--service-cluster-ip-range", "10.96.0.0/24", "--authorization-mode", "RBAC",
		// No controllers run: service accounts would not be created, and the taint of a new node
		// would not be removed.
		"--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
		// More workers speed up the cleanup between the rounds.
		"--delete-collection-workers", "16")
	if err := c.Serve("kube-apiserver", flags...); err != nil {
		return err
	}
	return c.connectUpstream(ctx, "https://127.0.0.1:"+ports[2], token)
}

// Certificate returns the path, without the suffixes .crt and .key, of the certificate of the API
// server started by StartUpstream.
func (c *Cluster) Certificate() string { return filepath.Join(c.Dir, "certificates", "apiserver") }

// writeCredentials writes the files by which the API server authenticates its administrator and
// signs tokens.
func (c *Cluster) writeCredentials() (token string, flags []string, err error) {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	token = hex.EncodeToString(secret)
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return "", nil, err
	}

	tokens, keys := filepath.Join(c.Dir, "tokens.csv"), filepath.Join(c.Dir, "service-accounts.key")
	if err := os.WriteFile(tokens, []byte(token+",bench,bench,system:masters\n"), 0o600); err != nil {
		return "", nil, err
	}
	if err := os.WriteFile(keys, key, 0o600); err != nil {
		return "", nil, err
	}
	return token, []string{"--token-auth-file", tokens, "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", keys, "--service-account-signing-key-file", keys}, nil
}

// connectUpstream writes the kubeconfig of the schedulers and waits until the API server is ready.
func (c *Cluster) connectUpstream(ctx context.Context, server, token string) error {
	if err := clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"bench": {Server: server, CertificateAuthority: c.Certificate() + ".crt"}},
		AuthInfos:      map[string]*api.AuthInfo{"bench": {Token: token}},
		Contexts:       map[string]*api.Context{"bench": {Cluster: "bench", AuthInfo: "bench"}},
		CurrentContext: "bench",
	}, c.Kubeconfig); err != nil {
		return err
	}

	const limit = 90 * time.Second
	return c.Until(ctx, "the API server to be ready", limit, func() (why string, err error) {
		// The API server's self-signed certificate may not have been written yet.
		if c.Client, err = NewClient(c.Kubeconfig, -1, 0); err != nil {
			return err.Error(), nil
		}
		status := 0
		c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&status)
		return Lacking(status, http.StatusOK), nil
	})
}

// FreePorts returns unused ports.
func FreePorts(n int) (ports []string, err error) {
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
