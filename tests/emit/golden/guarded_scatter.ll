define internal void @kernel.0(ptr noalias %b.x, ptr noalias %b.place, ptr noalias %b.out, i64 %e.n) #0 noinline {
entry:
  br label %start
start:
  br label %loop1.before
loop1.before:
  %loop1.any = icmp slt i64 0, %e.n
  br i1 %loop1.any, label %loop1, label %loop1.end
loop1:
  %c.i.1 = phi i64 [ 0, %loop1.before ], [ %loop1.next, %loop1.latch ]
  %v2 = getelementptr inbounds i64, ptr %b.place, i64 %c.i.1
  %v3 = load i64, ptr %v2, align 8
  %v4 = getelementptr inbounds float, ptr %b.out, i64 %v3
  %v5 = load float, ptr %v4, align 4
  %v6 = icmp slt i64 %v3, 3
  br label %guard7.from
guard7.from:
  br i1 %v6, label %guard7, label %guard7.end
guard7:
  %v8 = getelementptr inbounds float, ptr %b.x, i64 %v3
  %v9 = load float, ptr %v8, align 4
  br label %guard7.to
guard7.to:
  br label %guard7.end
guard7.end:
  %v10 = phi float [ 0x0000000000000000, %guard7.from ], [ %v9, %guard7.to ]
  %v11 = fadd reassoc float %v5, %v10
  store float %v11, ptr %v4, align 4
  br label %loop1.latch
loop1.latch:
  %loop1.next = add nsw i64 %c.i.1, 1
  %loop1.more = icmp slt i64 %loop1.next, %e.n
  br i1 %loop1.more, label %loop1, label %loop1.end
loop1.end:
  ret void
}
define void @kernel(ptr %args, i64 %threads) #0 {
  %n = trunc i64 %threads to i32
  %at.0 = getelementptr i64, ptr %args, i64 0
  %b.x = load ptr, ptr %at.0
  %at.1 = getelementptr i64, ptr %args, i64 1
  %b.place = load ptr, ptr %at.1
  %at.2 = getelementptr i64, ptr %args, i64 2
  %b.out = load ptr, ptr %at.2
  %at.3 = getelementptr i64, ptr %args, i64 3
  %e.n = load i64, ptr %at.3
  call void @kernel.0(ptr %b.x, ptr %b.place, ptr %b.out, i64 %e.n)
  ret void
}
attributes #0 = { nounwind  }
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.full"}

