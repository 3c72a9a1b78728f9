define internal void @kernel.0(ptr noalias %b.x, ptr noalias %b.out, i64 %e.n, i64 %e.m, i64 %from, i64 %to) #0 noinline {
entry:
  %var.sum = alloca double
  br label %start
start:
  br label %loop1.before
loop1.before:
  %loop1.any = icmp slt i64 %from, %to
  br i1 %loop1.any, label %loop1, label %loop1.end
loop1:
  %c.i.1 = phi i64 [ %from, %loop1.before ], [ %loop1.next, %loop1.latch ]
  store double 0x0000000000000000, ptr %var.sum
  br label %loop2.before
loop2.before:
  %loop2.any = icmp slt i64 0, %e.m
  br i1 %loop2.any, label %loop2, label %loop2.end
loop2:
  %c.j.2 = phi i64 [ 0, %loop2.before ], [ %loop2.next, %loop2.latch ]
  %v3 = load double, ptr %var.sum
  %v4 = mul nsw i64 %c.i.1, %e.m
  %v5 = add nsw i64 %v4, %c.j.2
  %v6 = getelementptr inbounds double, ptr %b.x, i64 %v5
  %v7 = load double, ptr %v6, align 8
  %v8 = fadd reassoc double %v3, %v7
  store double %v8, ptr %var.sum
  br label %loop2.latch
loop2.latch:
  %loop2.next = add nsw i64 %c.j.2, 1
  %loop2.more = icmp slt i64 %loop2.next, %e.m
  br i1 %loop2.more, label %loop2, label %loop2.end
loop2.end:
  %v9 = getelementptr inbounds double, ptr %b.out, i64 %c.i.1
  %v10 = load double, ptr %var.sum
  store double %v10, ptr %v9, align 8
  br label %loop1.latch
loop1.latch:
  %loop1.next = add nsw i64 %c.i.1, 1
  %loop1.more = icmp slt i64 %loop1.next, %to
  br i1 %loop1.more, label %loop1, label %loop1.end
loop1.end:
  ret void
}
define internal void @kernel.0.share(ptr %args) #0 {
  %at.0 = getelementptr i64, ptr %args, i64 0
  %b.x = load ptr, ptr %at.0
  %at.1 = getelementptr i64, ptr %args, i64 1
  %b.out = load ptr, ptr %at.1
  %at.2 = getelementptr i64, ptr %args, i64 2
  %e.n = load i64, ptr %at.2
  %at.3 = getelementptr i64, ptr %args, i64 3
  %e.m = load i64, ptr %at.3
  %t32 = call i32 @omp_get_thread_num()
  %n32 = call i32 @omp_get_num_threads()
  %t = zext i32 %t32 to i64
  %n = zext i32 %n32 to i64
  %next = add i64 %t, 1
  %low = mul i64 %t, %e.n
  %from = udiv i64 %low, %n
  %high = mul i64 %next, %e.n
  %to = udiv i64 %high, %n
  call void @kernel.0(ptr %b.x, ptr %b.out, i64 %e.n, i64 %e.m, i64 %from, i64 %to)
  ret void
}
define void @kernel(ptr %args, i64 %threads) #0 {
  %n = trunc i64 %threads to i32
  %at.0 = getelementptr i64, ptr %args, i64 0
  %b.x = load ptr, ptr %at.0
  %at.1 = getelementptr i64, ptr %args, i64 1
  %b.out = load ptr, ptr %at.1
  %at.2 = getelementptr i64, ptr %args, i64 2
  %e.n = load i64, ptr %at.2
  %at.3 = getelementptr i64, ptr %args, i64 3
  %e.m = load i64, ptr %at.3
  call void @GOMP_parallel(ptr @kernel.0.share, ptr %args, i32 %n, i32 0)
  ret void
}
attributes #0 = { nounwind  }
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.full"}

