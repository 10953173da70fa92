// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/up/relay"
)

// defaultServiceRange is the control plane's default.
const defaultServiceRange = "10.96.0.0/12"

// serviceRangeFile records a cluster's service range if it is not the default, because the range
// cannot change after Services have addresses.
const serviceRangeFile = "service-range"

// serviceRange returns the service range of the cluster in the data directory.
func serviceRange(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, serviceRangeFile))
	if err != nil {
		return defaultServiceRange
	}
	return strings.TrimSpace(string(text))
}

// serviceRelay lets pods reach the API server at the address of the Service kubernetes, although
// the API server listens on loopback only, and the node runs without kube-proxy.
type serviceRelay struct {
	listener net.Listener
	prefix   netip.Prefix
	device   string
}

// freeRanges returns the ranges for new clusters, above the default one and below the pods'
// networks. The first range depends on the folder, so that a restarted cluster usually finds its
// range free, regardless of clusters started meanwhile.
func freeRanges(dir string) (ranges []string) {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(dir)) // never fails
	for i := range uint32(16) {
		ranges = append(ranges, fmt.Sprintf("10.%d.0.0/16", 112+(hash.Sum32()+i)%16))
	}
	return ranges
}

// openRelay adds the service address to the network device and listens on it. Two clusters on one
// machine need separate service ranges: a new one takes the first range with a free address.
func openRelay(dir, device, kubeconfig string) (*serviceRelay, error) {
	ranges := []string{serviceRange(dir)}
	if isNew := !exists(filepath.Join(dir, "pki")) && ranges[0] == defaultServiceRange; isNew {
		ranges = freeRanges(dir)
	}

	for _, text := range ranges {
		d, err := listenAt(text, device)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, err
		}
		go relay.Serve(d.listener, func() (string, error) { return apiServer(kubeconfig) })
		if text == defaultServiceRange {
			return d, nil
		}
		if err := durable.Replace(filepath.Join(dir, serviceRangeFile), []byte(text+"\n"), 0o600); err != nil {
			return nil, errors.Join(err, d.close())
		}
		return d, nil
	}

	return nil, fmt.Errorf("%s is in use: another cluster on this machine has this service range: stop it, or start with another "+
		"--data-dir or with --fresh", ranges[0])
}

func listenAt(serviceRange, device string) (*serviceRelay, error) {
	services, err := netip.ParsePrefix(serviceRange)
	if err != nil {
		return nil, fmt.Errorf("service range: %w", err)
	}
	first := services.Masked().Addr().Next()
	d := &serviceRelay{prefix: netip.PrefixFrom(first, first.BitLen()), device: device}
	if err := d.changeAddress("replace"); err != nil {
		return nil, err
	}
	if d.listener, err = net.Listen("tcp", d.address()); err != nil {
		return nil, errors.Join(err, d.changeAddress("del"))
	}
	return d, nil
}

// address returns the value of pods' KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
func (d *serviceRelay) address() string { return netip.AddrPortFrom(d.prefix.Addr(), 443).String() }

func (d *serviceRelay) changeAddress(verb string) error {
	if out, err := exec.Command("ip", "addr", verb, d.prefix.String(), "dev", d.device).CombinedOutput(); err != nil {
		return fmt.Errorf("ip addr %s %s dev %s: %w: %s", verb, d.prefix, d.device, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (d *serviceRelay) close() error { return errors.Join(d.listener.Close(), d.changeAddress("del")) }

// kubeletPort returns the usual port or, if another kubelet has it, a free one.
func kubeletPort(address string) int {
	for _, port := range []string{"10250", "0"} {
		l, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().(*net.TCPAddr).Port
	}
	return 10250 // the kubelet reports the error
}

// apiServer returns the API server's current address: the port may change on a restart.
func apiServer(kubeconfig string) (string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	address, err := url.Parse(config.Host)
	if err != nil {
		return "", err
	}
	return address.Host, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
