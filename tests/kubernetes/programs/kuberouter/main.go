// kube-router's loop for network policies, alone: neither its routes nor its proxy.
//
// It writes iptables and ipset of the network namespace that it runs in, for the pods whose status
// names this node's address.
//
// kuberouter KUBECONFIG NODE SERVICES runs until SIGTERM. SERVICES are the addresses of services.
package main

import (
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: kuberouter KUBECONFIG NODE SERVICES")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(kubeconfig, node, services string) error {
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	config := options.NewKubeRouterConfig()
	config.EnableIPv4, config.EnableIPv6 = true, false
	config.HostnameOverride = node
	config.ClusterIPCIDRs = []string{services}
	config.IPTablesSyncPeriod = 10 * time.Second
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	spaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	tables, sets, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		return err
	}
	loop, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, spaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		return err
	}
	pods.AddEventHandler(loop.PodEventHandler)
	spaces.AddEventHandler(loop.NamespaceEventHandler)
	policies.AddEventHandler(loop.NetworkPolicyEventHandler)
	beats := make(chan *healthcheck.ControllerHeartbeat, 10)
	go func() {
		for range beats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	go loop.Run(beats, stop, &running)
	log.Print("ready")
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	<-signals
	close(stop)
	running.Wait()
	return nil
}
